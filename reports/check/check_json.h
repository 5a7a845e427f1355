// A check's result as JSON, for programs. docs/check-json.md lists the keys; docs/check.schema.json
// is for validators.
#pragma once

#include <string>

#include "analysis/check/check_result.h"

namespace lockstep {

inline constexpr int kCheckJsonVersion = 1;

std::string check_json(const CheckResult& result);

}  // namespace lockstep
