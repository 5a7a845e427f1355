// The tables of `recommend`'s answer: what was run, the frontier it went along, the sensitivity of
// the layers.
#pragma once

#include <string>

#include "analysis/search/advice.h"
#include "reports/writers/block.h"

namespace lockstep {

TableBlock tried_table(const Advice& advice);
TableBlock frontier_table(const Advice& advice);
TableBlock role_table(const SensitivityTable& table);
TableBlock measured_role_table(const SensitivityTable& table);
TableBlock noise_table(const SensitivityTable& table);
TableBlock layer_table(const SensitivityTable& table);

// "conv1, fc2 and 3 more".
std::string layer_names(const std::vector<KeptLayer>& layers);
// "trains as fp32", "broke", "still skips steps".
std::string verdict_text(const Trial& trial);

}  // namespace lockstep
