// Finds the loss scales at which a layer's numbers fit a narrow format.
// One FP32 trace gives the answer for every power-of-two scale 2^k: the backward pass is linear in
// the loss, so a scale only shifts each gradient's exponent histogram by k bins. A value with
// exponent e (2^e <= |x| < 2^(e+1)), scaled by 2^k, in a format with precision p and exponents
// emin..emax:
//
//    lost to zero          may overflow, with headroom
//   <------------|--------------------------|----------->   e + k
//          emin - p + 1              emax - kHeadroomOctaves
//
// Feasible: no value of the run has e + k above the upper mark, and at most kEnergyLimit of the
// tensor's energy lies below the lower one: the limit of the findings. Energy from a histogram: the
// values of a bin have the mean square of a uniform distribution, 7/3 4^e. Values in
// [min_subnormal / 2, min_subnormal) would round up; their energy counts as lost, because only
// their exponent would remain. Not modelled: the effect of the format's own rounding errors on
// later values, and gradients larger than any in the trace (the headroom is for these).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/run/energy.h"
#include "analysis/run/noise_gradient.h"
#include "emulation/format/format.h"
#include "emulation/stats/tensor_stats.h"
#include "src/graph/ir.h"

namespace lockstep {

inline constexpr int kHeadroomOctaves = 1;
// Scales outside 2^kMinScaleExponent .. 2^kMaxScaleExponent are not considered.
inline constexpr int kMinScaleExponent = -24, kMaxScaleExponent = 48;
// A static scale is this far below the largest feasible one if the interval allows it.
inline constexpr int kGuardOctaves = 2;

// The magnitudes at one site of the reference lane, over all steps, unscaled.
struct RangeSample {
  std::string layer, label;  // label: the site's, for messages
  Role role;
  bool scaled;               // a loss scale would multiply it
  bool is_function = false;  // of a node outside of any module: `layer` is its op
  std::array<uint64_t, kHistogramBins> histogram{};  // by FP32 exponent field
  uint64_t zeros = 0;  // of bin 0; the rest of that bin are FP32 subnormals

  std::optional<int> max_exponent() const;  // of finite nonzero values
  // Share of the energy in values that become zero in `format` when multiplied by 2^k.
  double lost_energy(int k, const Format& format) const;
  // Share of the nonzero values, however small, that become zero then: those below min_subnormal /
  // 2. Exact up to ties, values of exactly min_subnormal / 2, which round to zero, too; in formats
  // without subnormals up to those just below the smallest normal number.
  double zeroed_share(int k, const Format& format) const;
  // Share of the nonzero values in binades above the format's last one then. In that binade, values
  // above max_finite are not counted.
  double overflow_share(int k, const Format& format) const;
};

struct ScaleInterval {
  int lo = kMinScaleExponent, hi = kMaxScaleExponent;
  bool empty() const { return lo > hi; }
  bool contains(int k) const { return lo <= k && k <= hi; }
};
// Empty also when the trace holds infinities or NaN.
ScaleInterval feasible_scales(const RangeSample& sample, const Format& format);

struct LayerRange {
  std::string layer;
  bool is_function = false;  // see RangeSample
  // Gradients: the intersection over the layer's sites, and the site at each end.
  bool has_gradients = false;
  ScaleInterval scales;
  std::string lo_site, hi_site;
  double unscaled_gradient_lost = 0;  // largest share of a gradient's energy lost at scale 1
  // At the chosen scale, the largest such shares among the layer's gradients.
  double lost_energy = 0, zeroed_share = 0;
  // Unscaled values (inputs, weights, activations): octaves between the largest value and
  // the format's emax (negative: it overflows).
  std::optional<int> unscaled_margin;
  std::string unscaled_site;
  // Not empty: why the layer must not use the format.
  std::string reason;
};

struct RangeTable {
  const Format* format = nullptr;
  std::vector<LayerRange> layers;    // in the order of the samples
  ScaleInterval scales;              // common to all layers without a reason
  std::string lo_layer, hi_layer;    // the layers that set the ends
  int scale_exponent = 0;            // chosen: see choose_scale
  std::vector<std::string> ignored;  // gradients taken for rounding noise (kNoiseOctaves): labels
  // Rows to count and show as layers: modules. All rows, if the network has no module.
  bool counts(const LayerRange& row) const;
  // False of inference: no loss scale applies.
  bool has_gradients() const;
  // Over the gradients of the layers without a reason: see LayerRange.
  double lost_energy() const;
  double zeroed_share() const;
};

// Intersects layer by layer. If no scale suits all layers, keeps the scale that suits most of them;
// the others get a reason.
RangeTable make_range_table(const std::vector<RangeSample>& samples, const Format& format);

// hi - kGuardOctaves if that is feasible, else the middle (rounded down). Underflow costs
// values, an overflow costs a step, so the upper part is used but not its edge. Requires: not
// empty.
int choose_scale(const ScaleInterval& interval);

}  // namespace lockstep
