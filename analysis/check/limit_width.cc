// See limit_width.h.
#include "analysis/check/limit_width.h"

#include <fmt/format.h>

namespace lockstep {
namespace {

LimitWidth measured_width(const Metric& metric, const Band& band, const LimitBasis& basis) {
  if (band.is_exact() || (band.centre == 0 && metric.zero_tolerance)) {
    return {0, 0, basis.ensemble + ", none of which has any"};
  }
  const double noise = basis.factor * band.spread;
  const double floor = basis.draw == Draw::kSame ? metric.floor : metric.floor_of_seeds;
  if (noise > floor) return {noise, noise, basis.ensemble};
  return {floor, floor,
          fmt::format("the metric's floor: {} lie closer", basis.ensemble)};
}

}  // namespace

LimitWidth limit_width(const Metric& metric, const Band& band, const LimitBasis& basis,
                       const LimitRule* rule) {
  const LimitWidth measured = measured_width(metric, band, basis);
  if (rule == nullptr) return measured;
  const std::string where = fmt::format("{}, line {}", basis.rules_path, rule->pattern.line);
  if (rule->factor) {
    return {*rule->factor * measured.above, *rule->factor * measured.below,
            fmt::format("{}: {:g} times that of {}", where, *rule->factor, measured.from)};
  }
  if (metric.worse == WorseIf::kEither) return {*rule->max, *rule->max, where};
  // A number beyond the rule's limit is an alarm even if the baseline's is as large.
  return {*rule->max - band.centre, measured.below, where};
}

}  // namespace lockstep
