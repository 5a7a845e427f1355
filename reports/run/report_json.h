// A report as JSON, for programs: all that its sections show, with all digits. docs/report-json.md
// lists the keys; docs/report.schema.json is for validators.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "analysis/report/report.h"

namespace lockstep {

inline constexpr int kReportJsonVersion = 1;

// One object; numbers that were not measured are null.
nlohmann::ordered_json report_object(const Report& report);
std::string report_json(const Report& report);

}  // namespace lockstep
