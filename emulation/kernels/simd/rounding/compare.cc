// Compares a lane's array with the reference's: the terms and sums of
// emulation/kernels/compare_stats.h, bit for bit. A block whose pairs are added in float runs in
// vectors of floats; few of its groups can hold the largest error in ulps, and only those are
// computed in doubles. Other blocks run in vectors of doubles; ulp(x) comes from the exponent field
// of x.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>

#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/compare_stats.h"
#include "emulation/kernels/scalar/rounding/quantize.h"
#include "emulation/kernels/simd/rounding/chunk_comparer.h"
#include "emulation/kernels/simd/rounding/quantize.h"
#include "emulation/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/rounding/compare.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

using DD = hn::ScalableTag<double>;
using DI = hn::ScalableTag<int64_t>;
using DHalf = hn::Rebind<float, DD>;  // as many floats as a vector has doubles
using VD = hn::Vec<DD>;
using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using DFI = hn::RebindToSigned<DF>;
using VFI = hn::Vec<DFI>;

constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DD()));
constexpr int kVectors = static_cast<int>(kReductionLanes / kLanes);
constexpr int64_t kFloats = static_cast<int64_t>(hn::MaxLanes(DF()));
constexpr int kFloatVectors = static_cast<int>(kReductionLanes / kFloats);
constexpr int kDoubleBias = 1023, kDoubleFraction = 52;
constexpr int kFloatBias = 127, kFloatFraction = 23;
constexpr int32_t kFloatMagnitude = 0x7fffffff, kFloatInfinity = 0x7f800000;

// Dividing by a power of two equals multiplying by its inverse, as long as the inverse is a normal
// number and quotients of floats are far from the ends of double's range.
bool is_moderate_power_of_two(double scale) {
  constexpr double kLimit = 0x1p512;
  const bool power = (std::bit_cast<uint64_t>(scale) << (64 - kDoubleFraction)) == 0;
  return power && scale < kLimit && scale > 1 / kLimit;
}

// The virtual lanes of the three sums of a block.
struct LaneSums {
  VD sum[kCompareSums][kVectors];
  LaneSums() {
    for (auto& of_sum : sum) {
      for (VD& v : of_sum) v = hn::Zero(DD());
    }
  }
  void scale(double factor) {
    for (auto& of_sum : sum) {
      for (VD& v : of_sum) v = hn::Mul(v, hn::Set(DD(), factor));
    }
  }
  void store(VirtualLanes* lanes) const {
    for (int s = 0; s < kCompareSums; ++s) {
      for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[s][v], DD(), lanes[s].lane + v * kLanes);
    }
  }
};

// The largest |e| scale / ulp(scale r) so far, and what floats show of errors that may be larger.
class MaxUlps {
 public:
  MaxUlps(double known, double ulp_of_one) : value_(known), ulp_of_one_(ulp_of_one) {}
  void take(double ulps) { value_ = std::max(value_, ulps); }
  double value() const { return value_; }
  // No q of this or less belongs to a larger error. An infinite q always may: it shows nothing.
  float threshold() const {
    constexpr double kBelow = 1 - 0x1p-21;  // also of the rounding to float
    constexpr double kMostFloat = std::numeric_limits<float>::max();
    return static_cast<float>(std::min(value_ * ulp_of_one_ * kBelow, kMostFloat));
  }

 private:
  double value_, ulp_of_one_;
};

class ComparePass {
 public:
  ComparePass(const float* lane, const float* reference, double scale, const Format& format)
      : lane_(lane),
        reference_(reference),
        scale_(scale),
        exact_inverse_(is_moderate_power_of_two(scale)),
        groups_(may_group_pairs(scale)),
        format_(format),
        emin_field_(format.emin + kDoubleBias),
        emax_field_(format.emax + kDoubleBias),
        subnormal_step_up_(format.has_subnormals() ? 0 : format.precision - 1),
        ulp_of_one_(std::ldexp(1.0, 1 - format.precision)) {}

  void run(int64_t begin, int64_t end, ErrorStats& part, BlockSums<kCompareSums>* sums) const {
    bool guesses = true;
    for (; begin < end; begin += kReductionBlock, ++sums) {
      const int64_t block_end = std::min(end, begin + kReductionBlock);
      LaneSums lane_sums;
      const int64_t groups_end = add_groups(begin, block_end, guesses, lane_sums, part);
      VirtualLanes lanes[kCompareSums];
      add_rest(groups_end, block_end, lane_sums, part, lanes);
      for (int s = 0; s < kCompareSums; ++s) sums->sum[s] = lanes[s].join();
    }
  }

 private:
  // 1 / ulp(x) in the format: 2^(p-1-e), e the clamped exponent of x.
  HWY_INLINE VD inverse_ulp(VD x) const {
    const DD dd;
    const DI di;
    const auto bits = hn::BitCast(di, hn::Abs(x));
    const auto field = hn::ShiftRight<kDoubleFraction>(bits);
    const auto emin = hn::Set(di, emin_field_);
    const auto clamped = hn::Min(hn::Max(field, emin), hn::Set(di, emax_field_));
    const auto step_up = hn::IfThenElseZero(hn::Lt(field, emin), hn::Set(di, subnormal_step_up_));
    const int64_t inverse = 2 * kDoubleBias + format_.precision - 1;
    const auto inverse_field = hn::Sub(hn::Sub(hn::Set(di, inverse), clamped), step_up);
    return hn::BitCast(dd, hn::ShiftLeft<kDoubleFraction>(inverse_field));
  }

  // |e| scale / ulp(scale r), e the error.
  HWY_INLINE VD ulps(VD e, VD r) const {
    const VD scale = hn::Set(DD(), scale_);
    return hn::Mul(hn::Abs(hn::Mul(e, scale)), inverse_ulp(hn::Mul(r, scale)));
  }

  // The largest of a group of finite pairs.
  HWY_NOINLINE double group_ulps(int64_t begin) const {
    const DD dd;
    const DHalf dh;
    VD largest = hn::Zero(dd);
    for (int64_t at = begin; at < begin + kGroup; at += kLanes) {
      const VD x = hn::PromoteTo(dd, hn::LoadU(dh, lane_ + at));
      const VD r = hn::PromoteTo(dd, hn::LoadU(dh, reference_ + at));
      largest = hn::Max(largest, ulps(hn::Sub(hn::Mul(x, hn::Set(dd, 1 / scale_)), r), r));
    }
    return hn::GetLane(hn::MaxOfLanes(dd, largest));
  }

  CompareRule find_rule(int64_t begin, int64_t end) const {
    const DFI di;
    const auto largest_bits = [&](const float* values) {
      VFI largest = hn::Zero(di);
      int64_t at = begin;
      for (; at + kFloats <= end; at += kFloats) {
        const VFI bits = hn::BitCast(di, hn::LoadU(DF(), values + at));
        largest = hn::Max(largest, hn::And(bits, hn::Set(di, kFloatMagnitude)));
      }
      MagnitudeRange range;
      range.largest = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
      for (; at < end; ++at) range.add(values[at]);
      return range.largest;
    };
    return find_compare_rule(largest_bits(lane_), largest_bits(reference_), scale_);
  }

  // kPlain: both factors are 1.
  template <bool kPlain>
  void sum_groups(int64_t begin, int64_t end, const CompareRule& rule, LaneSums& lane_sums,
                  MaxUlps& max_ulps) const {
    const DF df;
    const DFI di;
    const DD dd;
    const hn::Half<DF> half;
    // In units of x and r. A smaller E makes q larger.
    const int shift = std::ilogb(rule.lane_factor);
    constexpr int kLargestField = 2 * kFloatBias - 1;  // its inverse is a normal number
    const VFI emin =
        hn::Set(di, std::min(format_.emin + kFloatBias + shift, kLargestField) << kFloatFraction);
    const VFI emax =
        hn::Set(di, std::min(format_.emax + kFloatBias + shift, kLargestField) << kFloatFraction);
    const VFI inverse = hn::Set(di, (2 * kFloatBias) << kFloatFraction);
    const VF lane_factor = hn::Set(df, rule.lane_factor);
    const VF reference_factor = hn::Set(df, rule.reference_factor);
    VF threshold = hn::Set(df, max_ulps.threshold());
    LaneSums sums;
    for (int64_t group = begin; group < end; group += kGroup) {
      VF float_sums[kCompareSums][kFloatVectors], largest = hn::Zero(df);
      for (auto& of_sum : float_sums) {
        for (VF& v : of_sum) v = hn::Zero(df);
      }
#pragma GCC unroll 8
      for (int t = 0; t < kGroup / kFloats; ++t) {
        const int v = t % kFloatVectors;
        const int64_t at = group + t * kFloats;
        VF x = hn::LoadU(df, lane_ + at), r = hn::LoadU(df, reference_ + at);
        if (t % kFloatVectors == 0) fetch_ahead(at);
        if constexpr (!kPlain) x = hn::Mul(x, lane_factor), r = hn::Mul(r, reference_factor);
        const VF e = hn::Sub(x, r);
        float_sums[kErrors][v] = hn::MulAdd(e, e, float_sums[kErrors][v]);
        float_sums[kDots][v] = hn::MulAdd(x, r, float_sums[kDots][v]);
        float_sums[kReferences][v] = hn::MulAdd(r, r, float_sums[kReferences][v]);
        const VFI exponent = hn::And(hn::BitCast(di, r), hn::Set(di, kFloatInfinity));
        const VFI clamped = hn::Min(hn::Max(exponent, emin), emax);
        const VF q = hn::Mul(e, hn::BitCast(df, hn::Sub(inverse, clamped)));
        largest = hn::Max(largest, hn::Abs(q));
      }
#pragma GCC unroll 3
      for (int s = 0; s < kCompareSums; ++s) {
#pragma GCC unroll 2
        for (int v = 0; v < kFloatVectors; ++v) {
          VD* const of_lanes = sums.sum[s] + 2 * v;
          const VF sum = float_sums[s][v];
          of_lanes[0] = hn::Add(of_lanes[0], hn::PromoteTo(dd, hn::LowerHalf(half, sum)));
          of_lanes[1] = hn::Add(of_lanes[1], hn::PromoteTo(dd, hn::UpperHalf(half, sum)));
        }
      }
      if (HWY_UNLIKELY(!hn::AllFalse(df, hn::Gt(largest, threshold)))) {
        max_ulps.take(group_ulps(group));
        threshold = hn::Set(df, max_ulps.threshold());
      }
    }
    lane_sums = sums;
  }

  // True if the sums show that the largest magnitude of the groups is between 2^-20 and 2^60, so
  // that the pairs were added with the right factor, 1. NaN and infinity show nothing.
  static bool shows_moderate(const LaneSums& sums) {
    // A sum of squares is at least that of the largest, and at most 4096 times that.
    constexpr double kLeast = kReductionBlock * 0x1p-38, kLargest = 0x1p58 * 0x1p58;
    const auto total = [&](CompareSum s) {
      VD sum = sums.sum[s][0];
      for (int v = 1; v < kVectors; ++v) sum = hn::Add(sum, sums.sum[s][v]);
      return hn::GetLane(hn::SumOfLanes(DD(), sum));
    };
    const double references = total(kReferences);
    return references >= kLeast && references <= kLargest && total(kErrors) <= kLargest;
  }

  // Adds the whole groups of the block, if its pairs are added in groups. Returns the first pair
  // that is left. `guesses`: takes the factor 1 without looking at the magnitudes; if the sums do
  // not prove it right, looks at them and adds the groups again. Set for the next block.
  int64_t add_groups(int64_t begin, int64_t end, bool& guesses, LaneSums& lane_sums,
                     ErrorStats& part) const {
    const int64_t groups_end = begin + (end - begin) / kGroup * kGroup;
    if (!groups_ || groups_end == begin) return begin;
    LaneSums sums;
    double max_ulps = 0;
    const auto add = [&](const CompareRule& rule) {
      MaxUlps found(part.err_max_ulps, ulp_of_one_);
      if (rule.reference_factor == 1 && rule.lane_factor == 1) {
        sum_groups<true>(begin, groups_end, rule, sums, found);
      } else {
        sum_groups<false>(begin, groups_end, rule, sums, found);
      }
      max_ulps = found.value();
      guesses = rule.lane_factor == 1 && shows_moderate(sums);
    };
    CompareRule rule = {true, 1, static_cast<float>(scale_), 1 / (scale_ * scale_)};
    guesses = guesses && find_rule(groups_end, end).grouped;
    if (guesses) add(rule);
    if (!guesses) {
      rule = find_rule(begin, end);
      if (!rule.grouped) return begin;
      add(rule);
    }
    sums.scale(rule.unscale);
    lane_sums = sums;
    part.err_max_ulps = max_ulps;
    part.compared += static_cast<uint64_t>(groups_end - begin);
    return groups_end;
  }

  // Returns how many pairs are finite. The others become (0, 0), which adds nothing.
  HWY_INLINE uint64_t add_row(int64_t row, LaneSums& sums, VD& max_ulps) const {
    const DD dd;
    const DHalf dh;
    const VD scale = hn::Set(dd, scale_), inverse_scale = hn::Set(dd, 1 / scale_);
    uint64_t compared = 0;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = row + v * kLanes;
      VD x = hn::PromoteTo(dd, hn::LoadU(dh, lane_ + at));
      VD r = hn::PromoteTo(dd, hn::LoadU(dh, reference_ + at));
      const auto finite = hn::And(hn::IsFinite(x), hn::IsFinite(r));
      compared += hn::CountTrue(dd, finite);
      x = hn::IfThenElseZero(finite, x);
      r = hn::IfThenElseZero(finite, r);
      const VD unscaled = exact_inverse_ ? hn::Mul(x, inverse_scale) : hn::Div(x, scale);
      const VD e = hn::Sub(unscaled, r);
      sums.sum[kErrors][v] = hn::Add(sums.sum[kErrors][v], hn::Mul(e, e));
      sums.sum[kDots][v] = hn::Add(sums.sum[kDots][v], hn::Mul(unscaled, r));
      sums.sum[kReferences][v] = hn::Add(sums.sum[kReferences][v], hn::Mul(r, r));
      max_ulps = hn::Max(max_ulps, ulps(e, r));
    }
    return compared;
  }

  // Adds pairs in double, and writes the virtual lanes.
  void add_rest(int64_t begin, int64_t end, LaneSums& lane_sums, ErrorStats& part,
                VirtualLanes* lanes) const {
    const DD dd;
    LaneSums sums = lane_sums;
    VD max_ulps = hn::Zero(dd);
    for (; begin + kReductionLanes <= end; begin += kReductionLanes) {
      part.compared += add_row(begin, sums, max_ulps);
      fetch_ahead(begin);
    }
    part.err_max_ulps = std::max(part.err_max_ulps, hn::GetLane(hn::MaxOfLanes(dd, max_ulps)));
    sums.store(lanes);
    for (; begin < end; ++begin) {
      const double x = lane_[begin], r = reference_[begin];
      if (!std::isfinite(x) || !std::isfinite(r)) continue;
      const ComparedTerms terms = compare_element(x, r, scale_, format_);
      const int64_t l = begin % kReductionLanes;
      ++part.compared;
      lanes[kErrors].lane[l] += terms.err_sq;
      lanes[kDots].lane[l] += terms.dot_ref;
      lanes[kReferences].lane[l] += terms.ref_sq;
      part.err_max_ulps = std::max(part.err_max_ulps, terms.ulps);
    }
  }

  // The processor alone fetches two arrays at half the speed. Addresses after the end do no harm.
  HWY_INLINE void fetch_ahead(int64_t at) const {
    constexpr int64_t kAhead = 2048;
    hwy::Prefetch(lane_ + at + kAhead);
    hwy::Prefetch(reference_ + at + kAhead);
  }

  const float* lane_;
  const float* reference_;
  double scale_;
  bool exact_inverse_, groups_;
  const Format& format_;
  int64_t emin_field_, emax_field_, subnormal_step_up_;
  double ulp_of_one_;
};

class VectorComparer final : public ChunkComparer {
 public:
  // Ulps of other formats need not have a normal inverse; sum_groups needs 2^emin as a normal
  // float.
  static bool takes(const Format& format) {
    constexpr int kFloatPrecision = 24;
    return format.precision <= kFloatPrecision && format.emin >= 1 - kFloatBias;
  }
  VectorComparer(const float* lane, int64_t count, const ReferenceComparison& with)
      : pass_(lane, with.reference, with.scale, *with.format), results_(count) {}
  int64_t chunks() const { return results_.chunks(); }
  void compare(int64_t chunk) override {
    pass_.run(results_.begin(chunk), results_.end(chunk), results_.part(chunk),
              results_.sums(chunk));
  }
  ErrorStats error() const override {
    ErrorStats error;
    const auto totals = results_.join(&error);
    error.err_sq = totals.sum[kErrors];
    error.dot_ref = totals.sum[kDots];
    error.ref_sq = totals.sum[kReferences];
    return error;
  }

 private:
  const ComparePass pass_;
  ChunkResults<kCompareSums, ErrorStats> results_;
};

std::unique_ptr<ChunkComparer> chunk_comparer(const float* lane, int64_t count,
                                              const ReferenceComparison& with) {
  if (!VectorComparer::takes(*with.format)) return nullptr;
  return std::make_unique<VectorComparer>(lane, count, with);
}

void compare(const float* lane, const float* reference, int64_t count, double scale,
             const Format& lane_format, ErrorStats* error) {
  if (!VectorComparer::takes(lane_format)) {
    return scalar_compare(lane, reference, count, scale, lane_format, error);
  }
  VectorComparer comparer(lane, count,
                          {.reference = reference, .scale = scale, .format = &lane_format});
  parallel_for(comparer.chunks(), [&](int64_t i) { comparer.compare(i); });
  *error = comparer.error();
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {

void avx2_compare(const float* lane, const float* reference, int64_t count, double scale,
                  const Format& lane_format, ErrorStats* error) {
  N_AVX2::compare(lane, reference, count, scale, lane_format, error);
}
void avx512_compare(const float* lane, const float* reference, int64_t count, double scale,
                    const Format& lane_format, ErrorStats* error) {
  N_AVX3::compare(lane, reference, count, scale, lane_format, error);
}

std::unique_ptr<ChunkComparer> avx2_chunk_comparer(const float* lane, int64_t count,
                                                   const ReferenceComparison& with) {
  return N_AVX2::chunk_comparer(lane, count, with);
}
std::unique_ptr<ChunkComparer> avx512_chunk_comparer(const float* lane, int64_t count,
                                                     const ReferenceComparison& with) {
  return N_AVX3::chunk_comparer(lane, count, with);
}

}  // namespace lockstep
#endif  // HWY_ONCE
