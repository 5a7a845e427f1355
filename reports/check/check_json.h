// A check's result as JSON, for programs: docs/check-json.md.
#pragma once

#include <string>

#include "analysis/check/check_result.h"
#include "reports/writers/json_keys.h"

namespace lockstep {

inline constexpr int kCheckJsonVersion = 1;

const JsonObject<CheckResult>& json_object(const CheckResult*);
std::string check_json(const CheckResult& result);

}  // namespace lockstep
