// How far may a number lie from the baseline's? As far as noise alone takes it (ensemble.h), at
// least the metric's floor, unless a rule says otherwise (rules.h).
#pragma once

#include <string>

#include "analysis/check/ensemble.h"
#include "analysis/check/metrics.h"
#include "analysis/check/rules.h"

namespace lockstep {

struct LimitWidth {
  double above, below;  // of the band's centre; `above` may be negative: the centre is too large
  std::string from;     // who says so
};

// What the limits of one check have in common.
struct LimitBasis {
  double factor = 0;     // of the spread: limit_factor()
  Draw draw = Draw::kSame;
  std::string ensemble;  // "13 runs from weights moved by one ulp"
  std::string rules_path;
};

// `rule`: null, where none applies.
LimitWidth limit_width(const Metric& metric, const Band& band, const LimitBasis& basis,
                       const LimitRule* rule);

}  // namespace lockstep
