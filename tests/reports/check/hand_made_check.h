// Results of a check written by hand, with everything that a writer may meet.
#pragma once

#include <string>

#include "analysis/check/check_result.h"

namespace lockstep::testing {

// A regression: two alarms of one metric, a finding, an improvement, an ignored alarm, a missing
// lane.
CheckResult regression();
// Nothing to compare with.
CheckResult inconclusive();
// Nothing was judged: two problems.
CheckResult failed();
// The regression, whose names are all `name`.
CheckResult regression_named(const std::string& name);
// A regression with so many alarms in so many lanes, all of one metric.
CheckResult many_alarms(size_t alarms, size_t lanes);

}  // namespace lockstep::testing
