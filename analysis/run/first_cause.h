// Which place broke first?
// Makes two separate diagnoses: the first value that was not finite although all values it was
// computed from were (range exceeded upwards), and the gradient of which the largest noticeable
// share became zero (range exceeded downwards).
#pragma once

#include <cstdint>
#include <optional>

#include "analysis/run/health.h"
#include "analysis/run/run_data.h"
#include "src/graph/site.h"

namespace lockstep {

// A report mentions underflow if a gradient site loses at least this share of its nonzero values to
// zero over the run. Every format rounds a smaller share to zero.
inline constexpr double kNotableUnderflowRate = 0.01;

struct NonfiniteCause {
  int64_t step = -1;
  int32_t site = -1;
  uint64_t to_infinity = 0, nan = 0, count = 0;
  bool feeds_finite = false;  // every site feeding it was finite in that step
};

// The first site in execution order that saw a non-finite value while all sites feeding it were
// finite. If every non-finite site has a non-finite feed: the first non-finite site.
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
