// What `baseline diff` prints: numbers as a check prints them, not their logarithms.
#include "reports/check/baseline_text.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/reports/golden_file.h"

namespace lockstep {
namespace {

using testing::holds;

std::string text_of(MetricId metric, double before, double after) {
  BaselineDiff diff;
  diff.compared = 10;
  diff.keys = {{.key = "fp32/x/place", .metric = metric, .before = before, .after = after}};
  return diff_text(diff);
}

TEST_CASE("a diff of baselines has the numbers that people read") {
  const std::string size = text_of(MetricId::kMagnitude, -3, -2);
  CHECK(holds(size, " 1  2 times"));
  CHECK_FALSE(holds(size, "-3"));
  CHECK(holds(text_of(MetricId::kToZero, 0, 0.25), "none    25%"));
  CHECK(holds(text_of(MetricId::kEndLoss, 2.25, 2.5), "2.25    2.5"));
  CHECK(holds(text_of(MetricId::kError, std::nan(""), -2), "-   0.25"));
  CHECK(holds(text_of(MetricId::kToZero, 0.25, std::nan("")), "25%      -"));
}

}  // namespace
}  // namespace lockstep
