// See live_site.h.
#include "analysis/monitor/live_site.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>

#include "src/core/error.h"

namespace lockstep {
namespace {

constexpr int kFp32Bias = 127;
constexpr int kNonfiniteBin = kHistogramBins - 1;

}  // namespace

const Format* find_known_format(std::string_view name) {
  try {
    return &find_format(name);
  } catch (const InputError&) {
    return nullptr;
  }
}

bool is_gradient(Role role) {
  return role == Role::kGradActivation || role == Role::kGradWeight;
}

bool is_quantised(const Site& site, const Format* format) {
  constexpr int kBits = 8;
  if (format != nullptr && format->storage_bits() <= kBits) return true;
  std::string op = site.op;
  std::ranges::transform(op, op.begin(), [](unsigned char c) { return std::tolower(c); });
  return op.find("float8") != op.npos || op.find("fp8") != op.npos;
}

RangeSample unscaled_sample(const Site& site, const SiteRecord& record) {
  RangeSample sample{.layer = site.layer,
                     .label = site.label(),
                     .role = site.role,
                     .scaled = site.scaled,
                     .zeros = record.stats.source_zero};
  const bool is_scaled = record.scale > 0 && std::isfinite(record.scale);
  const int shift = is_scaled ? std::ilogb(record.scale) : 0;
  const auto& bins = record.stats.exponent_histogram;
  sample.histogram[0] = bins[0];
  sample.histogram[kNonfiniteBin] = bins[kNonfiniteBin];
  for (int bin = 1; bin < kNonfiniteBin; ++bin) {
    const int to = std::clamp(bin - shift, 1, kNonfiniteBin - 1);
    sample.histogram[static_cast<size_t>(to)] += bins[static_cast<size_t>(bin)];
  }
  return sample;
}

int scale_to_fit(double abs_max, const Format& format) {
  return static_cast<int>(std::floor(std::log2(format.max_finite / abs_max)));
}

std::optional<double> LiveSite::headroom() const {
  const double largest = record.stats.abs_max;
  if (format == nullptr || !(largest > 0) || !std::isfinite(largest)) return std::nullopt;
  return std::log2(format->max_finite / largest);
}

double LiveSite::share_above(double limit) const {
  const auto& bins = record.stats.exponent_histogram;
  const double scaled = limit * record.scale;
  if (!(scaled > 0) || !std::isfinite(scaled)) return 0;
  const int last = std::ilogb(scaled) + kFp32Bias;
  uint64_t above = 0, nonzero = 0;
  for (int bin = 0; bin < kNonfiniteBin; ++bin) {
    nonzero += bins[static_cast<size_t>(bin)];
    if (bin > last) above += bins[static_cast<size_t>(bin)];
  }
  nonzero -= std::min(nonzero, record.stats.source_zero);
  return nonzero == 0 ? 0 : static_cast<double>(above) / static_cast<double>(nonzero);
}

double LiveSite::zeroed_share(const Format& other) const {
  if (!(largest() > 0) || !std::isfinite(largest())) return 0;
  return unscaled_sample(site, record).zeroed_share(scale_to_fit(largest(), other), other);
}

double DelayedScale::saturated_share(const LiveSite& now) {
  constexpr size_t kHistory = 16;
  largest_before_ = history_.empty() ? 0 : *std::ranges::max_element(history_);
  const double share = largest_before_ > 0 ? now.share_above(largest_before_) : 0;
  if (std::isfinite(now.largest())) history_.push_back(now.largest());  // infinity fits no scale
  if (history_.size() > kHistory) history_.pop_front();
  return share;
}

}  // namespace lockstep
