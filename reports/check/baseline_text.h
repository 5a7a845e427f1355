// What a new baseline changes, for a terminal.
#pragma once

#include <string>

#include "analysis/check/baseline_change.h"

namespace lockstep {

std::string diff_text(const BaselineDiff& diff);

}  // namespace lockstep
