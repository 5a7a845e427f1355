// Compares a lane's array with the reference's in vectors of doubles, with the terms of
// compare_element (emulation/kernels/block_pass.h); ulp(x) comes from the exponent field of x.
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

constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DD()));
constexpr int kVectors = static_cast<int>(kReductionLanes / kLanes);
constexpr int kDoubleBias = 1023, kDoubleFraction = 52;

// Dividing by a power of two equals multiplying by its inverse, as long as the inverse is a normal
// number and quotients of floats are far from the ends of double's range.
bool is_moderate_power_of_two(double scale) {
  constexpr double kLimit = 0x1p512;
  const bool power = (std::bit_cast<uint64_t>(scale) << (64 - kDoubleFraction)) == 0;
  return power && scale < kLimit && scale > 1 / kLimit;
}

class ComparePass {
 public:
  ComparePass(const float* lane, const float* reference, double scale, const Format& format)
      : lane_(lane),
        reference_(reference),
        scale_(scale),
        exact_inverse_(is_moderate_power_of_two(scale)),
        format_(format),
        emin_field_(format.emin + kDoubleBias),
        emax_field_(format.emax + kDoubleBias),
        subnormal_step_up_(format.has_subnormals() ? 0 : format.precision - 1) {}

  void run(int64_t begin, int64_t end, ErrorStats& part, BlockSums<kCompareSums>* sums) const {
    for (; begin < end; begin += kReductionBlock, ++sums) {
      VirtualLanes lanes[kCompareSums];
      const int64_t block_end = std::min(end, begin + kReductionBlock);
      const int64_t rows_end = begin + (block_end - begin) / kReductionLanes * kReductionLanes;
      run_rows(begin, rows_end, part, lanes);
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

  void run_rows(int64_t begin, int64_t end, ErrorStats& part, VirtualLanes* lanes) const {
    const DD dd;
    const DF df;
    const VD scale = hn::Set(dd, scale_), inverse_scale = hn::Set(dd, 1 / scale_);
    VD errors[kVectors], dots[kVectors], references[kVectors];
    VD max_ulps = hn::Zero(dd);
    uint64_t compared = 0;
    for (int v = 0; v < kVectors; ++v) errors[v] = dots[v] = references[v] = hn::Zero(dd);
    for (int64_t row = begin; row < end; row += kReductionLanes) {
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = row + v * kLanes;
        VD x = hn::PromoteTo(dd, hn::LoadU(df, lane_ + at));
        VD r = hn::PromoteTo(dd, hn::LoadU(df, reference_ + at));
        // Pairs that are not compared become (0, 0), which adds nothing.
        const auto finite = hn::And(hn::IsFinite(x), hn::IsFinite(r));
        compared += hn::CountTrue(dd, finite);
        x = hn::IfThenElseZero(finite, x);
        r = hn::IfThenElseZero(finite, r);
        const VD unscaled = exact_inverse_ ? hn::Mul(x, inverse_scale) : hn::Div(x, scale);
        const VD e = hn::Sub(unscaled, r);
        errors[v] = hn::Add(errors[v], hn::Mul(e, e));
        dots[v] = hn::Add(dots[v], hn::Mul(unscaled, r));
        references[v] = hn::Add(references[v], hn::Mul(r, r));
        const VD scaled_error = hn::Abs(hn::Mul(e, scale));
        max_ulps = hn::Max(max_ulps, hn::Mul(scaled_error, inverse_ulp(hn::Mul(r, scale))));
      }
    }
    part.compared += compared;
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(errors[v], dd, lanes[kErrors].lane + v * kLanes);
      hn::StoreU(dots[v], dd, lanes[kDots].lane + v * kLanes);
      hn::StoreU(references[v], dd, lanes[kReferences].lane + v * kLanes);
    }
    HWY_ALIGN double ulps[kLanes];
    hn::Store(max_ulps, dd, ulps);
    for (const double u : ulps) part.err_max_ulps = u > part.err_max_ulps ? u : part.err_max_ulps;
  }

  const float* lane_;
  const float* reference_;
  double scale_;
  bool exact_inverse_;
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
