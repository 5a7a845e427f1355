// Interval arithmetic on exponent histograms.
#include "analysis/ranges/scale_interval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace lockstep {
namespace {

constexpr int kFp32Bias = 127;
constexpr size_t kNonfiniteBin = kHistogramBins - 1;

int smallest_kept_exponent(const Format& f) {
  return f.has_subnormals() ? f.emin - f.precision + 1 : f.emin;
}

LayerRange& row_of(std::vector<LayerRange>& rows, const std::string& layer) {
  for (LayerRange& row : rows) {
    if (row.layer == layer) return row;
  }
  rows.emplace_back().layer = layer;
  return rows.back();
}

void add_gradient(LayerRange& row, const RangeSample& sample, const Format& format) {
  const ScaleInterval here = feasible_scales(sample, format);
  row.has_gradients = true;
  row.unscaled_gradient_lost = std::max(row.unscaled_gradient_lost, sample.lost_energy(0, format));
  if (here.lo > row.scales.lo) {
    row.scales.lo = here.lo;
    row.lo_site = sample.label;
  }
  if (here.hi < row.scales.hi) {
    row.scales.hi = here.hi;
    row.hi_site = sample.label;
  }
}

void add_unscaled(LayerRange& row, const RangeSample& sample, const Format& format) {
  const std::optional<int> top = sample.max_exponent();
  if (!top) return;
  const int margin = format.emax - *top;
  if (!row.unscaled_margin || margin < *row.unscaled_margin) {
    row.unscaled_margin = margin;
    row.unscaled_site = sample.label;
  }
}

bool is_rounding_noise(const RangeSample& sample, const std::vector<RangeSample>& samples) {
  if (!sample.scaled || sample.role != Role::kGradWeight) return false;
  const std::optional<int> top = sample.max_exponent();
  if (!top || sample.histogram[kNonfiniteBin] > 0) return false;
  return std::any_of(samples.begin(), samples.end(), [&](const RangeSample& other) {
    return other.scaled && other.layer == sample.layer &&
           other.max_exponent().value_or(*top) - kNoiseOctaves > *top;
  });
}

void find_reason(LayerRange& row, const Format& format) {
  if (row.unscaled_margin && *row.unscaled_margin < kHeadroomOctaves) {
    row.reason = fmt::format("{} reaches 2^{}; {} ends at 2^{}, with {} octave of headroom at 2^{}",
                             row.unscaled_site, format.emax - *row.unscaled_margin, format.name,
                             format.emax + 1, kHeadroomOctaves, format.emax + 1 - kHeadroomOctaves);
  } else if (row.scales.empty()) {
    row.reason = fmt::format("no loss scale fits: {} needs at least 2^{}, {} at most 2^{}",
                             row.lo_site.empty() ? "nothing" : row.lo_site, row.scales.lo,
                             row.hi_site.empty() ? "nothing" : row.hi_site, row.scales.hi);
  }
}

// The exponent in the most intervals: the middle of the longest run of such exponents.
int most_popular_exponent(const std::vector<LayerRange>& rows) {
  int best_votes = -1, best_lo = 0, best_hi = -1;
  for (int lo = kMinScaleExponent; lo <= kMaxScaleExponent;) {
    auto votes_at = [&](int k) {
      return static_cast<int>(std::count_if(rows.begin(), rows.end(), [k](const LayerRange& r) {
        return r.reason.empty() && r.scales.contains(k);
      }));
    };
    const int votes = votes_at(lo);
    int hi = lo;
    while (hi < kMaxScaleExponent && votes_at(hi + 1) == votes) ++hi;
    if (votes > best_votes || (votes == best_votes && hi - lo > best_hi - best_lo)) {
      best_votes = votes;
      best_lo = lo;
      best_hi = hi;
    }
    lo = hi + 1;
  }
  return best_lo + (best_hi - best_lo) / 2;
}

void intersect_layers(RangeTable& table) {
  table.scales = {};
  table.lo_layer.clear();
  table.hi_layer.clear();
  for (const LayerRange& row : table.layers) {
    if (!row.has_gradients || !row.reason.empty()) continue;
    if (row.scales.lo > table.scales.lo) {
      table.scales.lo = row.scales.lo;
      table.lo_layer = row.layer;
    }
    if (row.scales.hi < table.scales.hi) {
      table.scales.hi = row.scales.hi;
      table.hi_layer = row.layer;
    }
  }
}

}  // namespace

std::optional<int> RangeSample::max_exponent() const {
  for (size_t bin = kNonfiniteBin; bin-- > 1;) {
    if (histogram[bin] > 0) return static_cast<int>(bin) - kFp32Bias;
  }
  if (histogram[0] > zeros) return -kFp32Bias;  // FP32 subnormals: at most this
  return std::nullopt;
}

double RangeSample::lost_energy(int k, const Format& format) const {
  const std::optional<int> top = max_exponent();
  if (!top) return 0;
  double lost = 0, whole = 0;
  for (int bin = 0; bin < static_cast<int>(kNonfiniteBin); ++bin) {
    const int exponent = bin - kFp32Bias;
    uint64_t n = histogram[static_cast<size_t>(bin)];
    if (bin == 0) n = n > zeros ? n - zeros : 0;
    const double energy = std::ldexp(static_cast<double>(n), 2 * (exponent - *top));
    whole += energy;
    if (exponent + k < smallest_kept_exponent(format)) lost += energy;
  }
  return lost / whole;
}

namespace {

// Share of a sample's nonzero values whose exponent fulfils `is_lost`.
template <typename IsLost>
double share_of_values(const RangeSample& sample, IsLost is_lost) {
  uint64_t lost = 0, whole = 0;
  for (int bin = 0; bin < static_cast<int>(kNonfiniteBin); ++bin) {
    uint64_t n = sample.histogram[static_cast<size_t>(bin)];
    if (bin == 0) n = n > sample.zeros ? n - sample.zeros : 0;
    whole += n;
    if (is_lost(bin - kFp32Bias)) lost += n;
  }
  return whole == 0 ? 0 : static_cast<double>(lost) / static_cast<double>(whole);
}

}  // namespace

double RangeSample::zeroed_share(int k, const Format& format) const {
  // The binade below the smallest number kept rounds up to it.
  const int least = smallest_kept_exponent(format) - 1;
  return share_of_values(*this, [&](int exponent) { return exponent + k < least; });
}

double RangeSample::overflow_share(int k, const Format& format) const {
  return share_of_values(*this, [&](int exponent) { return exponent + k > format.emax; });
}

ScaleInterval feasible_scales(const RangeSample& sample, const Format& format) {
  ScaleInterval interval;
  if (sample.histogram[kNonfiniteBin] > 0)
    return {.lo = kMaxScaleExponent, .hi = kMinScaleExponent};
  const std::optional<int> top = sample.max_exponent();
  if (!top) return interval;  // only zeros: every scale is feasible
  interval.hi = std::min(interval.hi, format.emax - kHeadroomOctaves - *top);
  while (interval.lo < kMaxScaleExponent &&
         sample.lost_energy(interval.lo, format) > kEnergyLimit) {
    ++interval.lo;
  }
  return interval;
}

RangeTable make_range_table(const std::vector<RangeSample>& samples, const Format& format) {
  RangeTable table;
  table.format = &format;
  std::set<std::string> modules;  // one may have the name of an op
  for (const RangeSample& sample : samples) {
    if (!sample.is_function) modules.insert(sample.layer);
  }
  for (const RangeSample& sample : samples) {
    LayerRange& row = row_of(table.layers, sample.layer);
    row.is_function = !modules.contains(sample.layer);
    if (is_rounding_noise(sample, samples)) {
      table.ignored.push_back(sample.label);
    } else if (sample.scaled) {
      add_gradient(row, sample, format);
    } else {
      add_unscaled(row, sample, format);
    }
  }
  for (LayerRange& row : table.layers) find_reason(row, format);
  intersect_layers(table);
  if (table.scales.empty()) {
    const int k = most_popular_exponent(table.layers);
    for (LayerRange& row : table.layers) {
      if (!row.reason.empty() || row.scales.contains(k)) continue;
      row.reason = fmt::format("needs a loss scale in 2^{}..2^{}; 2^{} suits more layers",
                               row.scales.lo, row.scales.hi, k);
    }
    intersect_layers(table);
  }
  table.scale_exponent = choose_scale(table.scales);
  for (const RangeSample& sample : samples) {
    if (!sample.scaled || is_rounding_noise(sample, samples)) continue;
    LayerRange& row = row_of(table.layers, sample.layer);
    const int k = table.scale_exponent;
    row.lost_energy = std::max(row.lost_energy, sample.lost_energy(k, format));
    row.zeroed_share = std::max(row.zeroed_share, sample.zeroed_share(k, format));
  }
  return table;
}

bool RangeTable::counts(const LayerRange& row) const {
  return !row.is_function || std::ranges::all_of(layers, &LayerRange::is_function);
}

bool RangeTable::has_gradients() const {
  return std::ranges::any_of(layers, &LayerRange::has_gradients);
}

double RangeTable::lost_energy() const {
  double worst = 0;
  for (const LayerRange& row : layers) {
    if (row.reason.empty()) worst = std::max(worst, row.lost_energy);
  }
  return worst;
}

double RangeTable::zeroed_share() const {
  double worst = 0;
  for (const LayerRange& row : layers) {
    if (row.reason.empty()) worst = std::max(worst, row.zeroed_share);
  }
  return worst;
}

int choose_scale(const ScaleInterval& interval) {
  const int guarded = interval.hi - kGuardOctaves;
  // An interval without an upper end (no gradients at all) needs no scale.
  if (interval.hi >= kMaxScaleExponent && interval.lo <= 0) return 0;
  if (guarded >= interval.lo) return guarded;
  return interval.lo + (interval.hi - interval.lo) / 2;
}

}  // namespace lockstep
