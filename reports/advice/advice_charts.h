// The tables of `recommend`'s answer with their charts.
#pragma once

#include "analysis/search/advice.h"
#include "reports/writers/block.h"

namespace lockstep {

Block tried_chart(const Advice& advice);     // estimated time against the measured gap
Block frontier_chart(const Advice& advice);  // cost against score, what was run of it
Block layer_chart(const SensitivityTable& table);
Block role_chart(const SensitivityTable& table);

}  // namespace lockstep
