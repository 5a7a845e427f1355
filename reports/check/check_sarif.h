// A check's result as SARIF 2.1.0, which code scanning shows at the lines of the model: a rule is a
// metric or a kind of finding, a result is a cause (alarm_groups.h), and its message counts what
// follows from it.
// Source: OASIS, Static Analysis Results Interchange Format 2.1.0.
#pragma once

#include <string>
#include <string_view>

#include "analysis/check/check_result.h"

namespace lockstep {

std::string check_sarif(const CheckResult& result, std::string_view lockstep_version);

}  // namespace lockstep
