// Which place broke first?
// Two diagnoses, kept apart: the first value that was not finite although everything it was
// computed from was (range failure upwards), and the first gradient of which a noticeable share
// became zero (range failure downwards).
#pragma once

#include <cstdint>
#include <optional>

#include "analysis/run/health.h"
#include "analysis/run/run_data.h"
#include "src/graph/site.h"

namespace lockstep {

// A share of nonzero gradient values lost to zero, in one site over the run, from which on a report
// speaks of underflow. Below it, rounding to zero is what every format does to its smallest values.
inline constexpr double kNotableUnderflowRate = 0.01;

struct NonfiniteCause {
  int64_t step = -1;
  int32_t site = -1;
  uint64_t to_infinity = 0, nan = 0, count = 0;
  bool feeds_finite = false;  // every site feeding it was finite in that step
};

// The first site in execution order that saw a non-finite value while all sites feeding it were
// finite. When every such site has a non-finite feed, the first non-finite site.
std::optional<NonfiniteCause> find_nonfinite(const SiteTable& sites, const StepCounts& counts,
                                             int64_t step);

struct UnderflowCause {
  int32_t site = -1;
  double to_zero_rate = 0;  // over the run
  uint64_t to_zero = 0, nonzero = 0;
  int64_t worst_step = -1;
  double worst_step_rate = 0;
};

// The gradient site (grad_activation, grad_weight, or the accumulator they are summed in) that lost
// the largest share of its nonzero values to zero over the run, if that reaches
// kNotableUnderflowRate.
std::optional<UnderflowCause> worst_gradient_underflow(const SiteTable& sites,
                                                       const std::vector<SiteHealth>& health);

}  // namespace lockstep
