// Sensitivities measured by running one layer low, or one role of one layer, and the rest in FP32.
// A few lanes share a replay with FP32 and its one-ulp twin, whose row is the floor.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/search/sensitivity.h"
#include "analysis/search/trial_runs.h"

namespace lockstep {

// Runs some of the table's layers alone (the highest and lowest scores and some between, of each
// format), then, if the score ranks them badly, the rest of the top third. Where a layer has been
// measured, its score becomes the measurement. Then the roles of the most sensitive layers, each
// alone: their rows keep the score, and get a measurement.
// `scale_exponents`: a static loss scale for the formats that need one. `may_go_on`: asked before
// each replay. Throws: as TrialRuns::measure.
void measure_some(TrialRuns& runs, const Network& network,
                  const std::map<std::string, int>& scale_exponents,
                  const std::function<bool()>& may_go_on, SensitivityTable& table);

// The policy in which this layer alone is in the format, or only its values of this role.
std::string alone_policy(const std::string& layer, const std::string& format,
                         std::optional<Role> role, const Network& network, int scale_exponent);

// The roles of a layer's values that the format applies to, in the order of execution.
std::vector<Role> roles_in_format(const std::string& layer, const std::string& format,
                                  const Network& network);

}  // namespace lockstep
