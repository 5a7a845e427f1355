// One vector of floats rounded to a format: three ways, chosen by QuantizePlan, all equal to
// round_to_format bit for bit. Included once per target.
//
// Magnitudes are handled as integers: for floats without their sign the order of the bits is the
// order of the values, infinity and NaN last.
#if defined(LOCKSTEP_ROUND_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_ROUND_INL_H
#undef LOCKSTEP_ROUND_INL_H
#else
#define LOCKSTEP_ROUND_INL_H
#endif

#include <hwy/highway.h>

#include "emulation/simd/quantize_plan.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DU = hn::ScalableTag<uint32_t>;
using DI = hn::ScalableTag<int32_t>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
using MU = hn::Mask<DU>;

constexpr uint32_t kSignBit = 0x80000000, kInfinityBits = 0x7f800000, kNanBits = 0x7fc00000;
constexpr int kFloatFraction = 23;

// a < b for numbers below 2^31, which AVX2 can only compare as signed.
HWY_INLINE MU less(VU a, VU b) {
  const DI di;
  return hn::RebindMask(DU(), hn::Lt(hn::BitCast(di, a), hn::BitCast(di, b)));
}

class VectorRounder {
 public:
  explicit VectorRounder(const QuantizePlan& plan)
      : rounding_(plan.rounding),
        wide_exponent_(plan.wide_exponent),
        drop_(static_cast<uint32_t>(kFloatFraction - plan.fraction_bits)),
        fraction_bits_(static_cast<uint32_t>(plan.fraction_bits)),
        emin_field_(plan.emin_field),
        step_up_(plan.subnormal_step_up),
        max_finite_(plan.max_finite),
        from_infinity_(plan.from_infinity),
        overflow_positive_(plan.overflow_positive),
        overflow_negative_(plan.overflow_negative) {}

  // The magnitude bits of the rounded value. Exact for every |x| <= max_finite; for others (also
  // infinity and NaN) anything: fix_specials puts that right.
  // `sign`: x's sign bit alone; `random`: used by stochastic rounding.
  template <RoundPath kPath>
  HWY_INLINE VU round_magnitude(VU magnitude, VU sign, VU random) const {
    if constexpr (kPath == RoundPath::kMagic) return magic(magnitude);
    if constexpr (kPath == RoundPath::kInteger) return integer(magnitude);
    if constexpr (kPath == RoundPath::kGeneric) return generic(magnitude, sign, random);
    return magnitude;
  }

  // Overflow, infinity and NaN. `rounded`: what round_magnitude gave.
  template <RoundPath kPath>
  HWY_INLINE VU fix_specials(VU magnitude, VU sign, VU rounded) const {
    const DU du;
    const VU infinity = hn::Set(du, kInfinityBits);
    VU result = rounded;
    if constexpr (kPath != RoundPath::kIdentity) {
      // A rounded magnitude with its top bit set cannot be: magic and generic end as floats.
      const VU limit = hn::Set(du, max_finite_);
      const VU overflow =
          hn::IfThenElse(hn::Eq(sign, hn::Zero(du)), hn::Set(du, overflow_positive_),
                         hn::Set(du, overflow_negative_));
      result = hn::IfThenElse(less(limit, result), overflow, result);
      result = hn::IfThenElse(hn::Eq(magnitude, infinity), hn::Set(du, from_infinity_), result);
    }
    return hn::IfThenElse(less(infinity, magnitude), hn::Set(du, kNanBits), result);
  }

 private:
  // x + c keeps the bits of x above c's last place: emulation/simd/quantize_plan.cc.
  HWY_INLINE VU magic(VU magnitude) const {
    const DU du;
    const DF df;
    const VU exponent = hn::Max(hn::And(magnitude, hn::Set(du, kInfinityBits)),
                                hn::Set(du, emin_field_ << kFloatFraction));
    constexpr uint32_t kOneAndAHalf = 0x400000;
    const VF c =
        hn::BitCast(df, hn::Add(exponent, hn::Set(du, (drop_ << kFloatFraction) | kOneAndAHalf)));
    const VF rounded = hn::Sub(hn::Add(hn::BitCast(df, magnitude), c), c);
    return hn::AndNot(hn::Set(du, kSignBit), hn::BitCast(du, rounded));
  }

  // Half a last place, less one unless the kept part is odd, and cut. A carry runs into the
  // exponent.
  HWY_INLINE VU integer(VU magnitude) const {
    const DU du;
    const VU one = hn::Set(du, 1);
    const VU last = hn::And(hn::ShiftRightSame(magnitude, static_cast<int>(drop_)), one);
    const VU almost_half = hn::Set(du, (1u << (drop_ - 1)) - 1);
    const VU mask = hn::Set(du, ~((1u << drop_) - 1));
    return hn::And(hn::Add(hn::Add(magnitude, almost_half), last), mask);
  }

  // Steps 2 to 4 of emulation/rounding.cc. With FP32's own exponent field the whole magnitude plays
  // the significand, its exponent takes the carry. Vector shifts by 32 or more give zero, also
  // those by a "negative" count: x86 does so, and this file is for x86 vectors only.
  HWY_INLINE VU generic(VU magnitude, VU sign, VU random) const {
    const DU du;
    const VU one = hn::Set(du, 1);
    VU significand = magnitude, shift = hn::Set(du, drop_), last_place = hn::Zero(du);
    if (!wide_exponent_) {
      const VU field = hn::ShiftRight<kFloatFraction>(magnitude);
      const VU fraction = hn::And(magnitude, hn::Set(du, (1u << kFloatFraction) - 1));
      const VU implicit =
          hn::IfThenZeroElse(hn::Eq(field, hn::Zero(du)), hn::Set(du, 1u << kFloatFraction));
      significand = hn::Or(fraction, implicit);
      const VU exponent = hn::Max(field, one);
      const VU emin = hn::Set(du, emin_field_);
      const VU extra = hn::IfThenElseZero(less(exponent, emin), hn::Set(du, step_up_));
      const VU clamped = hn::Max(exponent, emin);
      shift = hn::Add(hn::Add(shift, extra), hn::Sub(clamped, exponent));
      // The field of 2^q: it is positive, for emin - M >= -62 - 23 > -126.
      last_place = hn::Add(hn::Sub(clamped, hn::Set(du, fraction_bits_)), extra);
    }
    VU kept = hn::Shr(significand, shift);
    const VU dropped = hn::And(significand, hn::Sub(hn::Shl(one, shift), one));
    kept = hn::Sub(kept,
                   hn::VecFromMask(du, rounds_up(significand, kept, dropped, shift, sign, random)));
    if (wide_exponent_) return hn::ShiftLeftSame(kept, static_cast<int>(drop_));
    const DF df;
    const VF value = hn::ConvertTo(df, hn::BitCast(DI(), kept));  // exact: kept <= 2^24
    const VF scale = hn::BitCast(df, hn::ShiftLeft<kFloatFraction>(last_place));
    return hn::BitCast(du, hn::Mul(value, scale));  // exact, or overflows
  }

  HWY_INLINE MU rounds_up(VU significand, VU kept, VU dropped, VU shift, VU sign, VU random) const {
    const DU du;
    const VU zero = hn::Zero(du), one = hn::Set(du, 1);
    const MU inexact = hn::Ne(dropped, zero);
    // Shifts beyond 31 drop a significand below 2^24 whole: less than half a place.
    const VU half = hn::Shl(one, hn::Sub(shift, one));
    const MU below_half = hn::Or(hn::Lt(dropped, half), hn::Lt(hn::Set(du, 31), shift));
    switch (rounding_) {
      case Rounding::kNearestEven: {
        const MU even = hn::Eq(hn::And(kept, one), zero);
        const MU stay = hn::Or(below_half, hn::And(hn::Eq(dropped, half), even));
        return hn::AndNot(stay, inexact);
      }
      case Rounding::kNearestAway:
        return hn::AndNot(below_half, inexact);
      case Rounding::kTowardZero:
        return hn::MaskFromVec(hn::Zero(du));
      case Rounding::kUp:
        return hn::And(inexact, hn::Eq(sign, zero));
      case Rounding::kDown:
        return hn::And(inexact, hn::Ne(sign, zero));
      case Rounding::kOdd:
        return hn::And(inexact, hn::Eq(hn::And(kept, one), zero));
      case Rounding::kStochastic: {
        const VU width = hn::Set(du, 32);
        const VU fraction = hn::Or(hn::Shl(significand, hn::Sub(width, shift)),
                                   hn::Shr(significand, hn::Sub(shift, width)));
        return hn::Lt(random, fraction);
      }
    }
    return hn::MaskFromVec(hn::Zero(du));
  }

  Rounding rounding_;
  bool wide_exponent_;
  uint32_t drop_, fraction_bits_, emin_field_, step_up_, max_finite_, from_infinity_;
  uint32_t overflow_positive_, overflow_negative_;
};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
