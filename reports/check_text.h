// The result of `check` as text: the verdict, then the first difference, then the worst ones.
#pragma once

#include <string>

#include "analysis/check/check_result.h"

namespace lockstep {

std::string check_text(const CheckResult& result, const std::string& run_path,
                       const std::string& baseline_path, const CheckOptions& options);

}  // namespace lockstep
