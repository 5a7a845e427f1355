// A check's result as SARIF 2.1.0, which code scanning shows at the lines of the model: a rule is a
// metric or a kind of finding, a result is an alarm.
// Source: OASIS, Static Analysis Results Interchange Format 2.1.0.
#pragma once

#include <string>
#include <string_view>

#include "analysis/check/check_result.h"

namespace lockstep {

// The most results of a run that GitHub shows.
inline constexpr size_t kMostSarifResults = 5000;

std::string check_sarif(const CheckResult& result, std::string_view lockstep_version);

}  // namespace lockstep
