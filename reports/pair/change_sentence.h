// What changed in a lane from one run to another, in words.
#pragma once

#include <string>

#include "analysis/report/report_pair.h"

namespace lockstep {

// "pure-fp16 broke at step 40 in a.h5; in b.h5 it trains as fp32 does."
std::string change_sentence(const ReportPair& pair, const LaneComparison& lanes);
// Whether a section shows the lanes: not noise, references and what PyTorch recorded.
bool is_shown(const ReportPair& pair, const LaneComparison& lanes);

}  // namespace lockstep
