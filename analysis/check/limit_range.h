// The range of a number that is no alarm: as far from the baseline's as noise alone takes it
// (ensemble.h), at least the metric's floor, unless a rule sets a limit (rules.h).
#pragma once

#include <string>

#include "analysis/check/ensemble.h"
#include "analysis/check/metrics.h"
#include "analysis/check/rules.h"

namespace lockstep {

struct LimitRange {
  double low, high;  // without an alarm; by a rule, `high` may be below the baseline's own number
  std::string from;  // who says so
};

// What the limits of one check have in common.
struct LimitBasis {
  double factor = 0;  // of the spread: limit_factor()
  Draw draw = Draw::kSame;
  std::string ensemble;  // "13 runs from weights moved by one ulp"
  std::string rules_path;
};

// `rule`: null, where none applies.
LimitRange limit_range(const Metric& metric, const Band& band, const LimitBasis& basis,
                       const LimitRule* rule);

}  // namespace lockstep
