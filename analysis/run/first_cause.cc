// The search for the first non-finite site and for the worst gradient underflow.
#include "analysis/run/first_cause.h"

#include <algorithm>

namespace lockstep {
namespace {

bool is_gradient(const Site& site) {
  return site.role == Role::kGradActivation || site.role == Role::kGradWeight ||
         (site.role == Role::kAccumulator && site.scaled);
}

}  // namespace

std::optional<NonfiniteCause> find_nonfinite(const SiteTable& sites, const StepCounts& counts,
                                             int64_t step) {
  std::optional<NonfiniteCause> first;
  for (const Site& site : sites.sites) {
    const auto i = static_cast<size_t>(site.id);
    if (!counts.nonfinite(i)) continue;
    NonfiniteCause here{.step = step,
                        .site = site.id,
                        .to_infinity = counts.to_infinity[i],
                        .nan = counts.nan[i],
                        .count = counts.count[i]};
    here.feeds_finite = std::none_of(site.feeds.begin(), site.feeds.end(), [&](int32_t f) {
      return counts.nonfinite(static_cast<size_t>(f));
    });
    if (here.feeds_finite) return here;
    if (!first) first = here;
  }
  return first;
}

std::optional<UnderflowCause> worst_gradient_underflow(const SiteTable& sites,
                                                       const std::vector<SiteHealth>& health) {
  std::optional<UnderflowCause> worst;
  for (const Site& site : sites.sites) {
    if (!is_gradient(site)) continue;
    const SiteHealth& h = health[static_cast<size_t>(site.id)];
    const double rate = h.to_zero_rate();
    if (rate < kNotableUnderflowRate || (worst && rate <= worst->to_zero_rate)) continue;
    worst = UnderflowCause{.site = site.id,
                           .to_zero_rate = rate,
                           .to_zero = h.to_zero,
                           .nonzero = h.nonzero,
                           .worst_step = h.worst_step,
                           .worst_step_rate = h.worst_step_rate};
  }
  return worst;
}

}  // namespace lockstep
