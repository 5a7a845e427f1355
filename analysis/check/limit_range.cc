// See limit_range.h.
#include "analysis/check/limit_range.h"

#include <fmt/format.h>

namespace lockstep {
namespace {

// The centre, as far below and above it.
LimitRange around(const Band& band, double width, std::string from) {
  return {band.centre - width, band.centre + width, std::move(from)};
}

LimitRange measured_range(const Metric& metric, const Band& band, const LimitBasis& basis) {
  if (band.is_exact() || (band.centre == 0 && metric.zero_tolerance)) {
    return around(band, 0, basis.ensemble + ", none of which has any");
  }
  const double noise = basis.factor * band.spread;
  const double floor = basis.draw == Draw::kSame ? metric.floor : metric.floor_of_seeds;
  if (noise > floor) return around(band, noise, basis.ensemble);
  return around(band, floor,
                fmt::format("the metric's floor, because {} differ by less", basis.ensemble));
}

}  // namespace

LimitRange limit_range(const Metric& metric, const Band& band, const LimitBasis& basis,
                       const LimitRule* rule) {
  const LimitRange measured = measured_range(metric, band, basis);
  if (rule == nullptr) return measured;
  const std::string where = fmt::format("{}, line {}", basis.rules_path, rule->pattern.line);
  if (rule->factor) {
    const double width = band.is_exact() ? 0 : *rule->factor * (measured.high - band.centre);
    return around(band, width,
                  fmt::format("{}: {:g} times that of {}", where, *rule->factor, measured.from));
  }
  if (metric.worse == WorseIf::kEither) return around(band, *rule->max, where);
  // A number beyond the rule's limit is an alarm even if the baseline's is as large.
  return {measured.low, *rule->max, where};
}

}  // namespace lockstep
