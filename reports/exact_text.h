// The result of `check` as text: the verdict, then the first difference, then the worst ones.
#pragma once

#include <string>

#include "analysis/check/exact_result.h"

namespace lockstep {

std::string exact_text(const ExactResult& result, const std::string& run_path,
                       const std::string& baseline_path, const ExactOptions& options);

}  // namespace lockstep
