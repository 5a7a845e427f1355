// See scale_story.h.
#include "analysis/findings/scale_story.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/findings/nonfinite.h"

namespace lockstep {

namespace {

bool is_skip(const ScalerRecord& s) {
  return s.skipped && s.found_inf;
}

// Skips at a lower scale than the skip before: a scale that has grown again is only probed.
int64_t falling_skips(std::span<const ScalerRecord> scalers) {
  int64_t count = 0;
  double before = std::numeric_limits<double>::infinity();
  for (const ScalerRecord& s : scalers) {
    if (!is_skip(s)) continue;
    count += s.scale < before;
    before = s.scale;
  }
  return count;
}

}  // namespace

std::vector<Finding> scale_findings(const LaneInfo& info, int lane,
                                    std::span<const ScalerRecord> scalers,
                                    const std::vector<int64_t>& skips_by_site,
                                    const SiteTable& sites, std::span<const Finding> origins) {
  size_t alive = 0;
  while (alive < scalers.size() && std::isfinite(scalers[alive].scale)) ++alive;
  const std::span<const ScalerRecord> lived = scalers.first(alive);
  const int64_t skips = std::ranges::count_if(lived, is_skip);
  if (skips == 0) return {};
  const bool gave_up = info.died_of == DeathCause::kLossScaler;
  const auto late = lived.subspan(alive / 2);
  const int64_t late_skips = falling_skips(late);
  const double late_rate = static_cast<double>(late_skips) / static_cast<double>(late.size());
  const bool falls = lived.back().scale < lived.front().scale;
  const bool none_taken = skips == static_cast<int64_t>(alive) && skips >= kFewestSkips;
  const auto first_taken = std::ranges::find_if_not(lived, is_skip);
  const bool only_probed = first_taken != lived.end() && first_taken - lived.begin() == skips;
  const bool collapses = none_taken || (falls && late_rate >= kSkipRateLimit && !only_probed &&
                                        late_skips >= kFewestLateSkips &&
                                        static_cast<int64_t>(alive) >= kFewestScaledSteps);
  const bool none_left = lived.front().scale > 1 && lived.back().scale <= 1;
  if (!gave_up && !collapses && !none_left) return {};
  // No scale helps there: the forward pass, or a division by a number that became zero.
  const bool elsewhere = std::ranges::any_of(origins, [&](const Finding& f) {
    const bool in_graph = is_in_graph(sites.sites[static_cast<size_t>(f.site)]);
    const bool unscaled = !f.backward || f.kind == FindingKind::kInvalid;
    return in_graph && unscaled && 2 * f.skipped_steps >= skips;
  });
  if (elsewhere) return {};
  const auto culprit = std::ranges::max_element(skips_by_site);
  Finding f{.kind = gave_up ? FindingKind::kScaleFloor : FindingKind::kScaleCollapse,
            .lane = lane,
            .last_step = static_cast<int64_t>(alive) - 1,
            .steps = static_cast<int64_t>(alive),
            .skipped_steps = skips,
            .backward = true,
            .value = lived.back().scale,
            .share = late_rate,
            .scale = lived.front().scale};
  const auto first = std::ranges::find_if(lived, is_skip);
  f.first_step = first - lived.begin();
  if (culprit != skips_by_site.end() && *culprit > 0) {
    f.site = static_cast<int32_t>(culprit - skips_by_site.begin());
    f.backward = is_backward(sites.sites[static_cast<size_t>(f.site)]);
  } else {
    f.site = first->culprit_site;
  }
  return {f};
}

}  // namespace lockstep
