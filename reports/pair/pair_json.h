// Two runs as JSON: both reports, and what changed. docs/report-json.md has a table of the keys.
#pragma once

#include <string>

#include "analysis/report/report_pair.h"
#include "reports/writers/json_keys.h"

namespace lockstep {

inline constexpr int kPairJsonVersion = 1;

const JsonObject<ReportPair>& json_object(const ReportPair*);
std::string pair_json(const ReportPair& pair);

}  // namespace lockstep
