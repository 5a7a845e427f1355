// Compares a lane's array with the reference's in vectors of doubles, with the terms of
// compare_element (emulation/kernels/block_pass.h); ulp(x) comes from the exponent field of x.
// Pieces of moderate numbers with a scale that is a power of two from 1 to 2^127 take a shorter
// path to the same bits. Products of two floats and their sum are one fused multiply-add: a double
// holds such a product exactly, with its 48 bits and at least 2^-149 2^-149 / 2^127 = 2^-425. And
// few rows can hold the largest error in ulps: those where floats say so are computed in doubles.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/scalar/quantize.h"
#include "emulation/kernels/simd/quantize.h"
#include "emulation/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/compare.cc"
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

// True if floats tell which errors in ulps may be the largest (MaxUlps).
bool allows_float_filter(double scale, const Format& format) {
  return is_moderate_power_of_two(scale) && scale >= 1 && scale <= 0x1p127 &&
         format.emin >= 1 - kFloatBias && format.emax <= kFloatBias;
}

// Elements that are looked at before they are compared, so that they are then in the first-level
// cache: 4 KB on each side.
constexpr int64_t kPiece = 1024;

class ComparePass {
 public:
  ComparePass(const float* lane, const float* reference, double scale, const Format& format)
      : lane_(lane),
        reference_(reference),
        scale_(scale),
        exact_inverse_(is_moderate_power_of_two(scale)),
        short_path_(allows_float_filter(scale, format)),
        format_(format),
        emin_field_(format.emin + kDoubleBias),
        emax_field_(format.emax + kDoubleBias),
        subnormal_step_up_(format.has_subnormals() ? 0 : format.precision - 1),
        ulp_of_one_(std::ldexp(1.0, 1 - format.precision)) {}

  void run(int64_t begin, int64_t end, ErrorStats& part, BlockSums<kCompareSums>* sums) const {
    for (; begin < end; begin += kReductionBlock, ++sums) {
      VirtualLanes lanes[kCompareSums];
      const int64_t block_end = std::min(end, begin + kReductionBlock);
      const int64_t rows_end = begin + (block_end - begin) / kReductionLanes * kReductionLanes;
      for (int64_t at = begin; at < rows_end; at += kPiece) {
        run_piece(at, std::min(rows_end, at + kPiece), part, lanes);
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

  // |e| scale / ulp(scale r), e the error.
  HWY_INLINE VD ulps(VD e, VD r) const {
    const VD scale = hn::Set(DD(), scale_);
    return hn::Mul(hn::Abs(hn::Mul(e, scale)), inverse_ulp(hn::Mul(r, scale)));
  }

  // True if no difference of a lane's number and a scaled reference is infinite in float.
  bool are_moderate(int64_t begin, int64_t end) const {
    const DI32 di;
    constexpr int64_t kFloats = static_cast<int64_t>(hn::MaxLanes(DI32()));
    constexpr double kLimit = 0x1p127;
    const auto too_large = [&](const float* values, double limit) {
      VI32 largest = hn::Zero(di);
      for (int64_t at = begin; at < end; at += kFloats) {
        const VI32 bits = hn::BitCast(di, hn::LoadU(DF32(), values + at));
        largest = hn::Max(largest, hn::And(bits, hn::Set(di, kFloatMagnitude)));
      }
      const auto limit_bits = std::bit_cast<int32_t>(static_cast<float>(limit));
      return !hn::AllTrue(di, hn::Lt(largest, hn::Set(di, limit_bits)));
    };
    return !too_large(lane_, kLimit) && !too_large(reference_, kLimit / scale_);
  }

  enum class Path { kAny, kScaled, kUnscaled };

  // The virtual lanes of a block, in vectors.
  struct Accumulators {
    VD errors[kVectors], dots[kVectors], references[kVectors];
    explicit Accumulators(const VirtualLanes* lanes) {
      for (int v = 0; v < kVectors; ++v) {
        errors[v] = hn::LoadU(DD(), lanes[kErrors].lane + v * kLanes);
        dots[v] = hn::LoadU(DD(), lanes[kDots].lane + v * kLanes);
        references[v] = hn::LoadU(DD(), lanes[kReferences].lane + v * kLanes);
      }
    }
    void store(VirtualLanes* lanes) const {
      for (int v = 0; v < kVectors; ++v) {
        hn::StoreU(errors[v], DD(), lanes[kErrors].lane + v * kLanes);
        hn::StoreU(dots[v], DD(), lanes[kDots].lane + v * kLanes);
        hn::StoreU(references[v], DD(), lanes[kReferences].lane + v * kLanes);
      }
    }
  };

  // The largest error in ulps, and what a float's bits tell of errors that may be larger.
  // An error d = lane - scale r, rounded to float, is within 2^-24 of itself. With m the bits of
  // 2^E, E the clamped exponent of scale r, the integer bits(|d|) - m is the logarithm of |d| / 2^E
  // as floats approximate it: the exponent above 23 bits of the fraction. It grows with |d| / 2^E;
  // where d is subnormal, or scale r is in a format without subnormals, it is too large, never too
  // small.
  class MaxUlps {
   public:
    MaxUlps(double known, double ulp_of_one) : ulp_of_one_(ulp_of_one) { take(known); }
    void take(double ulps) {
      if (ulps <= value_) return;
      value_ = ulps;
      constexpr double kBelow = 1 - 0x1p-22;
      const auto bits = std::bit_cast<int64_t>(ulps * ulp_of_one_ * kBelow);
      constexpr int kMore = kDoubleFraction - kFloatFraction;
      threshold_ = static_cast<int32_t>((bits >> kMore) - (int64_t{kDoubleBias} << kFloatFraction));
    }
    double value() const { return value_; }
    // An error without an integer above this is at most `value`.
    int32_t threshold() const { return threshold_; }

   private:
    double ulp_of_one_, value_ = 0;
    int32_t threshold_ = std::numeric_limits<int32_t>::min();
  };

  // True if an error of the row may be larger than the known ones. Requires: moderate numbers.
  template <Path kPath>
  HWY_INLINE bool may_exceed(int64_t row, int32_t known) const {
    const DI32 di;
    const DF32 df;
    constexpr int kFloats = static_cast<int>(hn::MaxLanes(DF32()));
    static_assert(kReductionLanes % kFloats == 0);
    const VI32 emin = hn::Set(di, (format_.emin + kFloatBias) << kFloatFraction);
    const VI32 emax = hn::Set(di, (format_.emax + kFloatBias) << kFloatFraction);
    auto exceeds = hn::FirstN(di, 0);
    for (int at = 0; at < kReductionLanes; at += kFloats) {
      auto r = hn::LoadU(df, reference_ + row + at);
      if constexpr (kPath == Path::kScaled) r = hn::Mul(r, hn::Set(df, static_cast<float>(scale_)));
      const auto d = hn::Sub(hn::LoadU(df, lane_ + row + at), r);
      const VI32 error = hn::And(hn::BitCast(di, d), hn::Set(di, kFloatMagnitude));
      const VI32 exponent = hn::And(hn::BitCast(di, r), hn::Set(di, kFloatInfinity));
      const VI32 clamped = hn::Min(hn::Max(exponent, emin), emax);
      const auto larger = hn::Gt(hn::Sub(error, clamped), hn::Set(di, known));
      exceeds = hn::Or(exceeds, hn::And(larger, hn::Gt(error, hn::Zero(di))));
    }
    return !hn::AllFalse(di, exceeds);
  }

  // Requires: moderate numbers.
  template <Path kPath>
  HWY_INLINE void add_moderate_row(int64_t row, Accumulators& sums) const {
    const DD dd;
    const DF df;
    const VD inverse_scale = hn::Set(dd, 1 / scale_);
#pragma GCC unroll 4  // the sums stay in registers
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = row + v * kLanes;
      VD x = hn::PromoteTo(dd, hn::LoadU(df, lane_ + at));
      const VD r = hn::PromoteTo(dd, hn::LoadU(df, reference_ + at));
      if constexpr (kPath == Path::kScaled) x = hn::Mul(x, inverse_scale);
      const VD e = hn::Sub(x, r);
      sums.errors[v] = hn::Add(sums.errors[v], hn::Mul(e, e));
      sums.dots[v] = hn::MulAdd(x, r, sums.dots[v]);
      sums.references[v] = hn::MulAdd(r, r, sums.references[v]);
    }
  }

  // The largest error in ulps of a row of finite numbers. Requires: exact_inverse_.
  HWY_NOINLINE double row_ulps(int64_t row) const {
    const DD dd;
    const DF df;
    VD largest = hn::Zero(dd);
    for (int64_t at = row; at < row + kReductionLanes; at += kLanes) {
      const VD x = hn::PromoteTo(dd, hn::LoadU(df, lane_ + at));
      const VD r = hn::PromoteTo(dd, hn::LoadU(df, reference_ + at));
      largest = hn::Max(largest, ulps(hn::Sub(hn::Mul(x, hn::Set(dd, 1 / scale_)), r), r));
    }
    return hn::GetLane(hn::MaxOfLanes(dd, largest));
  }

  // Returns how many pairs are finite. The others become (0, 0), which adds nothing.
  HWY_INLINE uint64_t add_row(int64_t row, Accumulators& sums, VD& max_ulps) const {
    const DD dd;
    const DF df;
    const VD scale = hn::Set(dd, scale_), inverse_scale = hn::Set(dd, 1 / scale_);
    uint64_t compared = 0;
#pragma GCC unroll 4
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
      max_ulps = hn::Max(max_ulps, ulps(e, r));
    }
    return compared;
  }

  void run_piece(int64_t begin, int64_t end, ErrorStats& part, VirtualLanes* lanes) const {
    if (!short_path_ || !are_moderate(begin, end)) {
      run_rows<Path::kAny>(begin, end, part, lanes);
    } else if (scale_ == 1) {
      run_rows<Path::kUnscaled>(begin, end, part, lanes);
    } else {
      run_rows<Path::kScaled>(begin, end, part, lanes);
    }
  }

  // The processor alone fetches two arrays at half the speed. Addresses after the end do no harm.
  HWY_INLINE void fetch_ahead(int64_t row) const {
    hwy::Prefetch(lane_ + row + 2 * kPiece);
    hwy::Prefetch(reference_ + row + 2 * kPiece);
  }

  template <Path kPath>
  void run_rows(int64_t begin, int64_t end, ErrorStats& part, VirtualLanes* lanes) const {
    const DD dd;
    Accumulators sums(lanes);
    if constexpr (kPath == Path::kAny) {
      VD max_ulps = hn::Zero(dd);
      for (int64_t row = begin; row < end; row += kReductionLanes) {
        part.compared += add_row(row, sums, max_ulps);
        fetch_ahead(row);
      }
      part.err_max_ulps = std::max(part.err_max_ulps, hn::GetLane(hn::MaxOfLanes(dd, max_ulps)));
    } else {
      MaxUlps max_ulps(part.err_max_ulps, ulp_of_one_);
      for (int64_t row = begin; row < end; row += kReductionLanes) {
        add_moderate_row<kPath>(row, sums);
        fetch_ahead(row);
        if (HWY_UNLIKELY(may_exceed<kPath>(row, max_ulps.threshold()))) {
          max_ulps.take(row_ulps(row));
        }
      }
      part.compared += static_cast<uint64_t>(end - begin);
      part.err_max_ulps = max_ulps.value();
    }
    sums.store(lanes);
  }

  const float* lane_;
  const float* reference_;
  double scale_;
  bool exact_inverse_, short_path_;
  const Format& format_;
  int64_t emin_field_, emax_field_, subnormal_step_up_;
  double ulp_of_one_;
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
