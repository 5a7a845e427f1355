// What one element adds to the statistics of a rounding, and the order in which the sums of a block
// take its elements. Plain functions for the host and for GPUs. Knows nothing of threads and of
// arrays that are cut.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "emulation/format/format.h"
#include "emulation/kernels/reduction.h"
#include "emulation/stats/hash.h"
#include "src/core/host_device.h"

namespace lockstep {

// The limits of a format that the statistics need.
struct StatsLimits {
  double max_finite, min_normal;
  explicit StatsLimits(const Format& format)
      : max_finite(format.max_finite), min_normal(format.min_normal()) {}
};

// The FP32 exponent field of x; a double takes the bin of its exponent clamped to 0..255.
LOCKSTEP_HOST_DEVICE inline int exponent_bin(float x) {
  return std::bit_cast<uint32_t>(x) >> 23 & 0xff;
}
inline int exponent_bin(double x) {
  constexpr int kBiasDifference = 1023 - 127;
  const int field = static_cast<int>(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff);
  const int bin = field - kBiasDifference;
  return bin < 0 ? 0 : bin > 255 ? 255 : bin;
}

// How the sums of a block of floats are formed (sums of doubles are in double throughout). In most
// blocks, four elements of a virtual lane, from four rows of 16 (a group), are added in float
// first, then to the double:
//   t = 0;  t = fma(s x, s x, t) four times, in float;  lane += t / s^2;  likewise s (y - x)
// where y - x counts as 0 if y is not finite. The scale s is a power of two, chosen so that no step
// overflows or underflows: all nonzero magnitudes are finite and within 100 binades, the least is
// 2^-126 or more, and y - x is 0 or at least 2^-23 of the least. So the sums do not depend on s.
// Elements after the last whole group are added in double, as are all elements of other blocks.
// Error: of a group at most gamma_4 of float (2.4e-7 of the sum) for squares, and for errors
// gamma_6 (3.6e-7): y - x is rounded where y is far from x.
inline constexpr int64_t kGroupRows = 4;
inline constexpr int64_t kGroup = kGroupRows * kReductionLanes;
struct GroupRule {
  bool grouped;
  float scale = 1;
  double unscale = 1;  // 1 / scale^2
};
// `least` and `largest`: bits of the block's least nonzero and its largest magnitude; `largest` is
// 0 for a block of zeros.
LOCKSTEP_HOST_DEVICE inline GroupRule find_group_rule(uint32_t least, uint32_t largest,
                                                      const StatsLimits& limits) {
  constexpr int kFraction = 23, kBias = 127, kMostBinades = 100, kMaxField = 254;
  constexpr int kTarget = 60;  // the largest is scaled to about 2^60: four squares stay finite
  constexpr uint32_t kInfinity = 0x7f800000;
  if (largest == 0) return {true};
  // Roundings up reach the format's least numbers from below.
  const auto from_below = std::bit_cast<uint32_t>(static_cast<float>(limits.min_normal));
  const int top = static_cast<int>(std::max(largest, from_below) >> kFraction);
  const int low = static_cast<int>(least >> kFraction);
  if (largest >= kInfinity || low == 0 || top - low > kMostBinades) return {false};
  const int field = std::min(2 * kBias + kTarget - top, kMaxField);
  const float scale = std::bit_cast<float>(static_cast<uint32_t>(field) << kFraction);
  return {true, scale, 1 / (static_cast<double>(scale) * scale)};
}

// Bits of the least nonzero and the largest magnitude of some floats.
struct MagnitudeRange {
  uint32_t least = ~0u, largest = 0;

  LOCKSTEP_HOST_DEVICE void add(float x) {
    constexpr uint32_t kMagnitude = 0x7fffffff;
    const uint32_t magnitude = std::bit_cast<uint32_t>(x) & kMagnitude;
    largest = std::max(largest, magnitude);
    if (magnitude != 0) least = std::min(least, magnitude);
  }
  LOCKSTEP_HOST_DEVICE void merge(const MagnitudeRange& other) {
    least = std::min(least, other.least), largest = std::max(largest, other.largest);
  }
};

// The sums of one virtual lane of a block of floats: see GroupRule.
class LaneSums {
 public:
  // `range`, `count`: of the whole block.
  LOCKSTEP_HOST_DEVICE LaneSums(const MagnitudeRange& range, int64_t count,
                                const StatsLimits& limits)
      : rule_(find_group_rule(range.least, range.largest, limits)),
        grouped_(rule_.grouped ? count / kGroup * kGroup : 0) {}

  // `i`: place in the block; every place of the lane, in ascending order.
  LOCKSTEP_HOST_DEVICE void add(int64_t i, float x, float y) {
    if (i >= grouped_) {
      if (!std::isfinite(x)) return;
      const double exact = x, error = static_cast<double>(y) - exact;
      squares_ += exact * exact;
      if (std::isfinite(y)) errors_ += error * error;
      return;
    }
    const int64_t row = i % kGroup / kReductionLanes;
    if (row == 0) square_ = error_ = 0;
    const float scaled = rule_.scale * x, error = std::isfinite(y) ? rule_.scale * (y - x) : 0;
    square_ = std::fma(scaled, scaled, square_);
    error_ = std::fma(error, error, error_);
    if (row < kGroupRows - 1) return;
    squares_ += square_ * rule_.unscale;
    errors_ += error_ * rule_.unscale;
  }
  LOCKSTEP_HOST_DEVICE double squares() const { return squares_; }
  LOCKSTEP_HOST_DEVICE double errors() const { return errors_; }

 private:
  GroupRule rule_;
  int64_t grouped_;  // elements in whole groups
  float square_ = 0, error_ = 0;
  double squares_ = 0, errors_ = 0;
};

// Adds one element to the statistics that are not sums. `stats`: TensorStats, or its fields but for
// the sums.
template <typename Before, typename T, typename Stats>
LOCKSTEP_HOST_DEVICE void count_element(Before before, T after, uint64_t index,
                                        const StatsLimits& limits, Stats& stats) {
  const double x = before, y = after;
  const double magnitude = std::abs(x), result = std::abs(y);
  ++stats.count;
  ++stats.exponent_histogram[static_cast<size_t>(exponent_bin(before))];
  stats.bits_hash += hash_element(after, index);
  if (std::isnan(x)) {
    ++stats.nan;
    return;
  }
  const bool finite = std::isfinite(x), stays_finite = std::isfinite(y);
  stats.source_zero += x == 0;
  stats.to_zero += x != 0 && y == 0;
  stats.to_subnormal += y != 0 && result < limits.min_normal;
  stats.to_infinity += finite && !stays_finite;
  stats.saturated += magnitude > limits.max_finite && result == limits.max_finite;
  stats.inexact += !(y == x);
  stats.abs_max = magnitude > stats.abs_max ? magnitude : stats.abs_max;
  if (finite && x != 0 && magnitude < stats.abs_min_nonzero) stats.abs_min_nonzero = magnitude;
}

}  // namespace lockstep
