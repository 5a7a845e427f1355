// Which alarms only show that code was rewritten?
// Inside of rewritten code the same mathematics takes another way: other partial sums, other
// roundings. What both programs share decides (shared_places.h); if it agrees, the rest is no
// regression, and a change that is named.
#pragma once

#include "analysis/check/check_result.h"
#include "analysis/check/judged_run.h"

namespace lockstep {

// Moves such alarms to `changes`, if there are no others. Only for runs of the baseline's draw.
void set_aside_changed_code(const JudgedRun& run, CheckResult& result);

}  // namespace lockstep
