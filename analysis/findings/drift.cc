// See drift.h.
#include "analysis/findings/drift.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep {

std::vector<double> effect_sizes(std::span<const std::vector<LossEffect>> effects,
                                 double LossEffect::*part, size_t sites) {
  std::vector<double> sizes(sites);
  for (size_t s = 0; s < sites; ++s) {
    double sum = 0;
    for (const auto& sample : effects) sum += sample[s].*part * (sample[s].*part);
    if (!effects.empty()) sizes[s] = std::sqrt(sum / static_cast<double>(effects.size()));
  }
  return sizes;
}

std::optional<Finding> find_drift(int lane, std::span<const std::vector<LossEffect>> effects,
                                  const SiteTable& sites, const std::vector<std::string>& formats) {
  const size_t count = sites.sites.size();
  const std::vector<double> rounding = effect_sizes(effects, &LossEffect::rounding, count);
  const std::vector<double> range = effect_sizes(effects, &LossEffect::range, count);
  const auto total = [](const std::vector<double>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), 0.0);
  };
  const bool of_range = total(range) > total(rounding);
  const std::vector<double>& sizes = of_range ? range : rounding;
  const double all = total(sizes);
  if (!(all > 0)) return std::nullopt;
  std::vector<int32_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](int32_t a, int32_t b) { return sizes[size_t(a)] > sizes[size_t(b)]; });
  const auto worst = static_cast<size_t>(order.front());
  Finding f{.kind = FindingKind::kDrift,
            .lane = lane,
            .steps = static_cast<int64_t>(effects.size()),
            .site = order.front(),
            .share = sizes[worst] / all};
  f.value = sizes[worst];
  f.text = of_range ? "range" : "rounding";
  if (worst < formats.size()) f.format = formats[worst];
  for (size_t i = 1; i < std::min(kMostDriftSites, order.size()); ++i) {
    if (sizes[static_cast<size_t>(order[i])] > 0) f.consequences.push_back(order[i]);
  }
  return f;
}

}  // namespace lockstep
