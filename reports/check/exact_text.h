// The result of `check` as text: the verdict, then the first difference, then the worst ones.
#pragma once

#include <string>

#include "analysis/exact/exact_result.h"

namespace lockstep {

// On the first element that differs, or on why it is not known, without a final period; "" if the
// first difference is at no site. `here`, `there`: what the text calls the two sides.
std::string first_value_text(const ExactResult& result, const std::string& here = "here",
                             const std::string& there = "in the baseline");
std::string exact_text(const ExactResult& result, const std::string& run_path,
                       const std::string& baseline_path, const ExactOptions& options);

}  // namespace lockstep
