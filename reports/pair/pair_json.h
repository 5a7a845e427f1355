// Two runs as JSON: both reports, and what changed. docs/report-json.md lists the keys.
#pragma once

#include <string>

#include "analysis/report/report_pair.h"

namespace lockstep {

inline constexpr int kPairJsonVersion = 1;
std::string pair_json(const ReportPair& pair);

}  // namespace lockstep
