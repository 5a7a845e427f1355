// Compares a lane's array with the reference's in vectors of doubles, with the terms of
// compare_element (emulation/kernels/block_pass.h); ulp(x) comes from the exponent field of x.
// Blocks of finite numbers with a scale that is a power of two from 1 to 2^127 take a shorter path
// to the same bits: exponent fields in 32 bits, and products of two floats in one fused
// multiply-add with their sum. A double holds such a product exactly: 48 bits, and at least 2^-149
// 2^-149 / 2^127 = 2^-425.
#include <algorithm>
#include <bit>

#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/scalar/quantize.h"
#include "emulation/kernels/simd/quantize.h"
#include "emulation/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/compare.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

using DD = hn::ScalableTag<double>;
using DI = hn::ScalableTag<int64_t>;
using DF = hn::Rebind<float, DD>;  // as many floats as a vector has doubles
using VD = hn::Vec<DD>;
using DF32 = hn::ScalableTag<float>;
using DI32 = hn::RebindToSigned<DF32>;
using VI32 = hn::Vec<DI32>;

constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DD()));
constexpr int kVectors = static_cast<int>(kReductionLanes / kLanes);
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

// True if `scale * x` in float has the same exponent as in double, after both are clamped to the
// range of a format within float's. Below 1, a product may round up to the least normal number.
// Above, it may become infinite, whose field is clamped to emax as that of the double is.
bool keeps_exponent_in_float(double scale, const Format& format) {
  return is_moderate_power_of_two(scale) && scale >= 1 && scale <= 0x1p127 &&
         format.emin >= 1 - kFloatBias && format.emax <= kFloatBias;
}

class ComparePass {
 public:
  ComparePass(const float* lane, const float* reference, double scale, const Format& format)
      : lane_(lane),
        reference_(reference),
        scale_(scale),
        exact_inverse_(is_moderate_power_of_two(scale)),
        short_path_(keeps_exponent_in_float(scale, format)),
        format_(format),
        emin_field_(format.emin + kDoubleBias),
        emax_field_(format.emax + kDoubleBias),
        subnormal_step_up_(format.has_subnormals() ? 0 : format.precision - 1) {}

  void run(int64_t begin, int64_t end, ErrorStats& part, BlockSums<kCompareSums>* sums) const {
    for (; begin < end; begin += kReductionBlock, ++sums) {
      VirtualLanes lanes[kCompareSums];
      const int64_t block_end = std::min(end, begin + kReductionBlock);
      const int64_t rows_end = begin + (block_end - begin) / kReductionLanes * kReductionLanes;
      if (short_path_ && all_finite(begin, rows_end)) {
        run_rows<true>(begin, rows_end, part, lanes);
      } else {
        run_rows<false>(begin, rows_end, part, lanes);
      }
      for (int64_t i = rows_end; i < block_end; ++i) {
        const double x = lane_[i], r = reference_[i];
        if (!std::isfinite(x) || !std::isfinite(r)) continue;
        const ComparedTerms terms = compare_element(x, r, scale_, format_);
        const int64_t l = i % kReductionLanes;
        ++part.compared;
        lanes[kErrors].lane[l] += terms.err_sq;
        lanes[kDots].lane[l] += terms.dot_ref;
        lanes[kReferences].lane[l] += terms.ref_sq;
        part.err_max_ulps = std::max(part.err_max_ulps, terms.ulps);
      }
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

  // 1 / ulp(scale x) for a vector of floats, as the upper halves of doubles.
  HWY_INLINE VI32 inverse_ulp_halves(hn::Vec<DF32> x) const {
    const DI32 di;
    const hn::Vec<DF32> scaled = hn::Mul(x, hn::Set(DF32(), static_cast<float>(scale_)));
    const VI32 bits = hn::And(hn::BitCast(di, scaled), hn::Set(di, kFloatMagnitude));
    const VI32 field = hn::ShiftRight<kFloatFraction>(bits);
    const VI32 emin = hn::Set(di, static_cast<int32_t>(format_.emin + kFloatBias));
    const VI32 emax = hn::Set(di, static_cast<int32_t>(format_.emax + kFloatBias));
    const VI32 clamped = hn::Min(hn::Max(field, emin), emax);
    const VI32 step_up = hn::IfThenElseZero(hn::Lt(field, emin),
                                            hn::Set(di, static_cast<int32_t>(subnormal_step_up_)));
    const VI32 inverse = hn::Set(di, kDoubleBias + kFloatBias + format_.precision - 1);
    constexpr int kUpperFraction = kDoubleFraction - 32;
    return hn::ShiftLeft<kUpperFraction>(hn::Sub(hn::Sub(inverse, clamped), step_up));
  }
  // The doubles whose upper halves these are, and whose lower halves are zero.
  HWY_INLINE static VD with_upper_halves(hn::VFromD<hn::Rebind<int32_t, DD>> upper) {
    return hn::BitCast(DD(), hn::ShiftLeft<32>(hn::PromoteTo(DI(), upper)));
  }

  bool all_finite(int64_t begin, int64_t end) const {
    const DI32 di;
    constexpr int64_t kFloats = static_cast<int64_t>(hn::MaxLanes(DI32()));
    VI32 largest = hn::Zero(di);
    for (int64_t at = begin; at < end; at += kFloats) {
      for (const float* values : {lane_, reference_}) {
        const VI32 bits = hn::BitCast(di, hn::LoadU(DF32(), values + at));
        largest = hn::Max(largest, hn::And(bits, hn::Set(di, kFloatMagnitude)));
      }
    }
    return hn::AllTrue(di, hn::Lt(largest, hn::Set(di, kFloatInfinity)));
  }

  struct Accumulators {
    VD errors[kVectors], dots[kVectors], references[kVectors];
    VD max_ulps = hn::Zero(DD());
    Accumulators() {
      for (int v = 0; v < kVectors; ++v) errors[v] = dots[v] = references[v] = hn::Zero(DD());
    }
  };

  // Requires: all finite, and short_path_.
  HWY_INLINE void add_finite_row(int64_t row, Accumulators& sums) const {
    const DD dd;
    const DF df;
    const hn::Rebind<int32_t, DD> di_half;
    constexpr int kFloats = static_cast<int>(hn::MaxLanes(DF32()));
    static_assert(kReductionLanes % kFloats == 0);
    const VD scale = hn::Set(dd, scale_), inverse_scale = hn::Set(dd, 1 / scale_);
    HWY_ALIGN int32_t upper[kReductionLanes];
    for (int at = 0; at < kReductionLanes; at += kFloats) {
      hn::Store(inverse_ulp_halves(hn::LoadU(DF32(), reference_ + row + at)), DI32(), upper + at);
    }
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = row + v * kLanes;
      const VD x = hn::PromoteTo(dd, hn::LoadU(df, lane_ + at));
      const VD r = hn::PromoteTo(dd, hn::LoadU(df, reference_ + at));
      const VD unscaled = hn::Mul(x, inverse_scale);
      const VD e = hn::Sub(unscaled, r);
      sums.errors[v] = hn::Add(sums.errors[v], hn::Mul(e, e));
      sums.dots[v] = hn::MulAdd(unscaled, r, sums.dots[v]);
      sums.references[v] = hn::MulAdd(r, r, sums.references[v]);
      const VD inverse_ulp = with_upper_halves(hn::Load(di_half, upper + v * kLanes));
      sums.max_ulps = hn::Max(sums.max_ulps, hn::Mul(hn::Abs(hn::Mul(e, scale)), inverse_ulp));
    }
  }

  // Returns how many pairs are finite. The others become (0, 0), which adds nothing.
  HWY_INLINE uint64_t add_row(int64_t row, Accumulators& sums) const {
    const DD dd;
    const DF df;
    const VD scale = hn::Set(dd, scale_), inverse_scale = hn::Set(dd, 1 / scale_);
    uint64_t compared = 0;
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = row + v * kLanes;
      VD x = hn::PromoteTo(dd, hn::LoadU(df, lane_ + at));
      VD r = hn::PromoteTo(dd, hn::LoadU(df, reference_ + at));
      const auto finite = hn::And(hn::IsFinite(x), hn::IsFinite(r));
      compared += hn::CountTrue(dd, finite);
      x = hn::IfThenElseZero(finite, x);
      r = hn::IfThenElseZero(finite, r);
      const VD unscaled = exact_inverse_ ? hn::Mul(x, inverse_scale) : hn::Div(x, scale);
      const VD e = hn::Sub(unscaled, r);
      sums.errors[v] = hn::Add(sums.errors[v], hn::Mul(e, e));
      sums.dots[v] = hn::Add(sums.dots[v], hn::Mul(unscaled, r));
      sums.references[v] = hn::Add(sums.references[v], hn::Mul(r, r));
      const VD scaled_error = hn::Abs(hn::Mul(e, scale));
      sums.max_ulps = hn::Max(sums.max_ulps, hn::Mul(scaled_error, inverse_ulp(hn::Mul(r, scale))));
    }
    return compared;
  }

  template <bool kFinite>
  void run_rows(int64_t begin, int64_t end, ErrorStats& part, VirtualLanes* lanes) const {
    const DD dd;
    Accumulators sums;
    uint64_t compared = 0;
    for (int64_t row = begin; row < end; row += kReductionLanes) {
      if constexpr (kFinite) {
        add_finite_row(row, sums);
        compared += kReductionLanes;
      } else {
        compared += add_row(row, sums);
      }
    }
    part.compared += compared;
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sums.errors[v], dd, lanes[kErrors].lane + v * kLanes);
      hn::StoreU(sums.dots[v], dd, lanes[kDots].lane + v * kLanes);
      hn::StoreU(sums.references[v], dd, lanes[kReferences].lane + v * kLanes);
    }
    HWY_ALIGN double ulps[kLanes];
    hn::Store(sums.max_ulps, dd, ulps);
    for (const double u : ulps) part.err_max_ulps = u > part.err_max_ulps ? u : part.err_max_ulps;
  }

  const float* lane_;
  const float* reference_;
  double scale_;
  bool exact_inverse_, short_path_;
  const Format& format_;
  int64_t emin_field_, emax_field_, subnormal_step_up_;
};

void compare(const float* lane, const float* reference, int64_t count, double scale,
             const Format& lane_format, ErrorStats* error) {
  constexpr int kFloatPrecision = 24;
  if (lane_format.precision > kFloatPrecision) {  // its ulps need not have a normal inverse
    return scalar_compare(lane, reference, count, scale, lane_format, error);
  }
  const ComparePass pass(lane, reference, scale, lane_format);
  *error = ErrorStats();
  const auto totals = for_each_chunk<kCompareSums>(
      count, error,
      [&](int64_t begin, int64_t end, ErrorStats& part, BlockSums<kCompareSums>* sums) {
        pass.run(begin, end, part, sums);
      });
  error->err_sq = totals.sum[kErrors];
  error->dot_ref = totals.sum[kDots];
  error->ref_sq = totals.sum[kReferences];
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

}  // namespace lockstep
#endif  // HWY_ONCE
