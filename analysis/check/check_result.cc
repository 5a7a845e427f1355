// Verdicts as words and as exit codes.
#include "analysis/check/check_result.h"

namespace lockstep {

std::string_view to_string(CheckVerdict verdict) {
  switch (verdict) {
    case CheckVerdict::kIdentical:
      return "identical";
    case CheckVerdict::kWithinNoise:
      return "within noise";
    case CheckVerdict::kImproved:
      return "improved";
    case CheckVerdict::kRegression:
      return "regression";
    case CheckVerdict::kIncomplete:
      return "incomplete";
    case CheckVerdict::kError:
      return "error";
    case CheckVerdict::kInconclusive:
      break;
  }
  return "inconclusive";
}

int exit_code_of(CheckVerdict verdict) {
  constexpr int kRegressionCode = 1, kErrorCode = 2, kInconclusiveCode = 3;
  if (verdict == CheckVerdict::kRegression) return kRegressionCode;
  if (verdict == CheckVerdict::kError) return kErrorCode;
  const bool is_open =
      verdict == CheckVerdict::kIncomplete || verdict == CheckVerdict::kInconclusive;
  return is_open ? kInconclusiveCode : 0;
}

}  // namespace lockstep
