// A report as JSON, for programs: all that its sections show, with all digits. docs/report-json.md
// lists the keys, docs/report.schema.json says it to a validator.
#pragma once

#include <string>

#include "reports/report.h"

namespace lockstep {

inline constexpr int kReportJsonVersion = 1;

// One object; numbers that were not measured are null.
std::string report_json(const Report& report);

}  // namespace lockstep
