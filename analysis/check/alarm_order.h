// The order in which alarms are reported.
#pragma once

#include "analysis/check/check_result.h"

namespace lockstep {

// The origin first: what the first step shows, in the order of execution (the reference before
// the lanes that follow it); then what cannot be in any run; then by how far it lies out.
void sort_alarms(CheckResult& result);

}  // namespace lockstep
