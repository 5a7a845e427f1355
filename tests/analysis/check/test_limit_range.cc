// The range in which a number is no alarm: from noise, from the metric's floor, from a rule.
#include "analysis/check/limit_range.h"

#include <doctest/doctest.h>

#include <limits>

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const LimitBasis kBasis = {.factor = 4, .ensemble = "5 runs", .rules_path = "rules.toml"};

LimitRange range_of(MetricId id, double centre, double spread, const LimitRule* rule = nullptr) {
  return limit_range(metric_row(id), {.centre = centre, .spread = spread, .always = true}, kBasis,
                     rule);
}

TEST_CASE("without a rule: the noise, at least the floor, none where there was none") {
  const LimitRange noise = range_of(MetricId::kToZero, 0.5, 0.0625);
  CHECK(noise.low == 0.25);
  CHECK(noise.high == 0.75);
  CHECK(noise.from == "5 runs");
  const LimitRange floor = range_of(MetricId::kToZero, 0.5, 0);
  CHECK(floor.high == 0.5 + metric_row(MetricId::kToZero).floor);
  CHECK(floor.from == "the metric's floor, because 5 runs differ by less");
  CHECK(range_of(MetricId::kNonfinite, 0, 0.1).high == 0);
  CHECK(range_of(MetricId::kRounding, -kInfinity, 0).high == -kInfinity);
}

TEST_CASE("a rule's factor multiplies the distance, its max replaces the upper end") {
  LimitRule rule;
  rule.pattern.line = 3;
  rule.factor = 2;
  const LimitRange twice = range_of(MetricId::kToZero, 0.5, 0.0625, &rule);
  CHECK(twice.low == 0);
  CHECK(twice.high == 1);
  CHECK(twice.from == "rules.toml, line 3: 2 times that of 5 runs");
  CHECK(range_of(MetricId::kRounding, -kInfinity, 0, &rule).high == -kInfinity);
  rule.factor.reset();
  rule.max = 0.125;
  const LimitRange most = range_of(MetricId::kToZero, 0.5, 0.0625, &rule);
  CHECK(most.low == 0.25);
  CHECK(most.high == 0.125);
  CHECK(most.from == "rules.toml, line 3");
  CHECK(range_of(MetricId::kRounding, -kInfinity, 0, &rule).high == 0.125);
  const LimitRange either = range_of(MetricId::kMagnitude, 2, 0.25, &rule);
  CHECK(either.low == 1.875);
  CHECK(either.high == 2.125);
}

}  // namespace
}  // namespace lockstep
