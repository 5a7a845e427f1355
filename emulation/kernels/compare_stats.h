// What a compared pair, a lane's number and the reference's, adds to the statistics of the error,
// and the order in which the sums of a block take the pairs. Knows nothing of threads and of arrays
// that are cut.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "emulation/format/format.h"
#include "emulation/kernels/element_stats.h"

namespace lockstep {

// One compared pair, in double. Requires: both finite.
struct ComparedTerms {
  double err_sq, dot_ref, ref_sq, ulps;
};
inline ComparedTerms compare_element(double lane, double reference, double scale,
                                     const Format& format) {
  const double unscaled = lane / scale;
  const double e = unscaled - reference;
  const double ulps = std::abs(e * scale) / ulp(reference * scale, format);
  return {e * e, unscaled * reference, reference * reference, ulps};
}
enum CompareSum { kErrors, kDots, kReferences, kCompareSums };

// How the sums over a block of floats are formed (a lane in double: in double throughout). In most
// blocks, four pairs of a virtual lane, from four rows of 16 (a group), are added in float first,
// then to the double:
//   x = s lane,  r = (s scale) reference,  e = x - r                     in float
//   t = 0;  t = fma(e, e, t) four times, in float;  lane += t / (s scale)^2
//   likewise x r and r r
// This holds for blocks of finite numbers without a magnitude of 2^60 or more, in units of the
// lane, and a scale that is a power of two from 1 to 2^127. By their exponent fields, s is 1 if the
// largest magnitude is zero, or 2^-20 or more; otherwise it is the power of two that brings the
// largest close to 1, as far as s scale is at most 2^127. A reference that is not zero must then
// have a magnitude of 2^-60 or more, so that the sum of its squares does not underflow. Pairs after
// the last whole group are added in double, as are all pairs of other blocks.
// Error: of a group at most gamma_6 of float, 3.6e-7 of the sum of its terms' magnitudes, and
// 2^-147 / (s scale)^2 where terms underflow: squares of errors below 2^-63 / s in units of the
// lane lose digits, those below 2^-75 / s count as 0.
struct CompareRule {
  bool grouped;
  float lane_factor = 1, reference_factor = 1;  // s, s scale
  double unscale = 1;                           // 1 / (s scale)^2
};

inline bool may_group_pairs(double scale) {
  constexpr uint64_t kFraction = (uint64_t{1} << 52) - 1;
  return (std::bit_cast<uint64_t>(scale) & kFraction) == 0 && scale >= 1 && scale <= 0x1p127;
}

// `lane`, `reference`: bits of the block's largest magnitudes. Requires: may_group_pairs(scale).
inline CompareRule find_compare_rule(uint32_t lane, uint32_t reference, double scale) {
  constexpr int kFraction = 23, kBias = 127, kMostExponent = 127;
  constexpr int kTooLarge = 60, kComfortable = -20, kTooSmall = -60;
  constexpr uint32_t kInfinity = 0x7f800000;
  if (std::max(lane, reference) >= kInfinity) return {false};
  const int scale_exponent = std::ilogb(scale);
  const int lane_exponent = static_cast<int>(lane >> kFraction) - kBias;
  const int reference_exponent =
      reference == 0 ? -kBias : static_cast<int>(reference >> kFraction) - kBias + scale_exponent;
  const int largest = std::max(lane_exponent, reference_exponent);
  if (largest >= kTooLarge) return {false};
  const bool as_is = (lane | reference) == 0 || largest >= kComfortable;
  const int exponent = as_is ? 0 : std::min(-largest, kMostExponent - scale_exponent);
  if (reference != 0 && reference_exponent + exponent < kTooSmall) return {false};
  const double factor = std::ldexp(scale, exponent);
  return {true, std::ldexp(1.0f, exponent), static_cast<float>(factor), 1 / (factor * factor)};
}

// The sums of one virtual lane of a block of floats: see CompareRule.
class CompareLane {
 public:
  // `count`: of the block.
  CompareLane(const CompareRule& rule, int64_t count)
      : rule_(rule), grouped_(rule.grouped ? count / kGroup * kGroup : 0) {}

  // `i`: place in the block; those of the lane whose pairs are finite, in ascending order. `terms`:
  // of the pair.
  template <typename T>
  void add(int64_t i, T lane, float reference, const ComparedTerms& terms) {
    if (i >= grouped_) {
      sums_[kErrors] += terms.err_sq;
      sums_[kDots] += terms.dot_ref;
      sums_[kReferences] += terms.ref_sq;
      return;
    }
    const int64_t row = i % kGroup / kReductionLanes;
    if (row == 0) std::fill(group_, group_ + kCompareSums, 0.0f);
    const float x = rule_.lane_factor * static_cast<float>(lane);
    const float r = rule_.reference_factor * reference;
    const float e = x - r;
    group_[kErrors] = std::fma(e, e, group_[kErrors]);
    group_[kDots] = std::fma(x, r, group_[kDots]);
    group_[kReferences] = std::fma(r, r, group_[kReferences]);
    if (row < kGroupRows - 1) return;
    for (int s = 0; s < kCompareSums; ++s) sums_[s] += group_[s] * rule_.unscale;
  }
  double sum(CompareSum s) const { return sums_[s]; }

 private:
  CompareRule rule_;
  int64_t grouped_;  // pairs in whole groups
  float group_[kCompareSums] = {};
  double sums_[kCompareSums] = {};
};

}  // namespace lockstep
