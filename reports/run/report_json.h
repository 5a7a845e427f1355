// A report as JSON, for programs: all that its sections show, with all digits. docs/report-json.md
// has a table of the keys.
#pragma once

#include <string>

#include "analysis/report/report.h"
#include "reports/writers/json_keys.h"

namespace lockstep {

inline constexpr int kReportJsonVersion = 1;

const JsonObject<Report>& json_object(const Report*);
std::string report_json(const Report& report);

}  // namespace lockstep
