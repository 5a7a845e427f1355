// The outcome and the findings of every lane as JSON, for programs. docs/findings.md lists the
// keys.
#pragma once

#include <string>

#include "reports/report.h"

namespace lockstep {

inline constexpr int kReportJsonVersion = 1;

// One object; numbers that were not measured are null.
std::string report_json(const Report& report);

}  // namespace lockstep
