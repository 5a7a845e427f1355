// Rounds one vector of floats to a format. Of three ways, QuantizePlan chooses one; all equal
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

#include <algorithm>

#include "emulation/kernels/simd/rounding/quantize_plan.h"

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
        depends_on_last_(rounding_ == Rounding::kNearestEven || rounding_ == Rounding::kOdd),
        thresholds_(rounding_),
        format_(plan) {
    const uint32_t below = std::max({plan.least, plan.flush_in_below, plan.flush_out_below});
    unusual_less_1_ = std::max(below, 1u) - 1;
  }

  // The magnitude bits of the rounded value. Exact for every |x| <= max_finite. For others (also
  // infinity and NaN) the bits are arbitrary; fix_specials corrects them.
  // `sign`: only x's sign bit; `random`: used by stochastic rounding.
  // kNormal: only the format's normal numbers and zeros.
  template <RoundPath kPath, bool kNormal = false>
  HWY_INLINE VU round_magnitude(VU magnitude, VU sign, VU random) const {
    if constexpr (kPath == RoundPath::kMagic) return magic<kNormal>(magnitude);
    if constexpr (kPath == RoundPath::kInteger) return integer(magnitude);
    if constexpr (kPath == RoundPath::kGeneric) {
      if constexpr (!kNormal) {
        const DU du;
        const VU less_1 = hn::Sub(magnitude, hn::Set(du, 1));  // of zero: the largest number
        const MU unusual = hn::Lt(less_1, hn::Set(du, unusual_less_1_));
        if (HWY_UNLIKELY(!hn::AllFalse(du, unusual))) {
          // Works on a copy, so that the compiler keeps the constants of the loops in registers.
          const VectorRounder rounder = *this;
          return rounder.flushing(magnitude, sign, random);
        }
      }
      return usual(magnitude, sign, random);
    }
    return magnitude;
  }

  // The bits of the result. `result`: a magnitude that is not NaN.
  template <RoundPath kPath>
  HWY_INLINE VU with_sign(VU result, VU sign) const {
    if constexpr (kPath == RoundPath::kGeneric) {
      if (format_.unsigned_zero) {
        sign = hn::IfThenZeroElse(hn::Eq(result, hn::Zero(DU())), sign);
      }
    }
    return hn::Or(result, sign);
  }

  // Overflow of a finite x. `rounded`: the result of round_magnitude, whose bits are those of a
  // number beyond max_finite if x overflows.
  template <RoundPath kPath>
  HWY_INLINE VU fix_overflow(VU sign, VU rounded) const {
    if constexpr (kPath == RoundPath::kIdentity) return rounded;
    const DU du;
    // A rounded magnitude never has its top bit set: magic and generic end as floats.
    const VU limit = hn::Set(du, format_.max_finite);
    const VU overflow =
        hn::IfThenElse(hn::Eq(sign, hn::Zero(du)), hn::Set(du, format_.overflow_positive),
                       hn::Set(du, format_.overflow_negative));
    return hn::IfThenElse(less(limit, rounded), overflow, rounded);
  }

  // Overflow, infinity and NaN. `rounded`: the result of round_magnitude.
  template <RoundPath kPath>
  HWY_INLINE VU fix_specials(VU magnitude, VU sign, VU rounded) const {
    const DU du;
    const VU infinity = hn::Set(du, kInfinityBits);
    VU result = rounded;
    if constexpr (kPath != RoundPath::kIdentity) {
      result = fix_overflow<kPath>(sign, rounded);
      result =
          hn::IfThenElse(hn::Eq(magnitude, infinity), hn::Set(du, format_.from_infinity), result);
    }
    return hn::IfThenElse(less(infinity, magnitude), hn::Set(du, kNanBits), result);
  }

 private:
  // x + c keeps the bits of x above c's last place:
  // emulation/kernels/simd/rounding/quantize_plan.cc. The sum of two positive numbers is positive,
  // and minus c it is not negative (a zero is +0 to nearest).
  template <bool kNormal>
  HWY_INLINE VU magic(VU magnitude) const {
    const DU du;
    const DF df;
    VU exponent = hn::And(magnitude, hn::Set(du, kInfinityBits));
    if constexpr (!kNormal) {
      exponent = hn::Max(exponent, hn::Set(du, format_.emin_field << kFloatFraction));
    }
    constexpr uint32_t kOneAndAHalf = 0x400000;
    const VF c = hn::BitCast(
        df, hn::Add(exponent, hn::Set(du, (format_.drop << kFloatFraction) | kOneAndAHalf)));
    return hn::BitCast(du, hn::Sub(hn::Add(hn::BitCast(df, magnitude), c), c));
  }

  // Adds half a last place, less one unless the kept part is odd, and cuts. A carry runs into the
  // exponent.
  HWY_INLINE VU integer(VU magnitude) const {
    const DU du;
    const VU one = hn::Set(du, 1);
    const VU last = hn::And(hn::ShiftRightSame(magnitude, static_cast<int>(format_.drop)), one);
    const VU almost_half = hn::Set(du, (1u << (format_.drop - 1)) - 1);
    const VU mask = hn::Set(du, ~((1u << format_.drop) - 1));
    return hn::And(hn::Add(hn::Add(magnitude, almost_half), last), mask);
  }

  // Any magnitude.
  HWY_NOINLINE VU flushing(VU magnitude, VU sign, VU random) const {
    const DU du;
    if (format_.flush_in_below != 0) {
      const MU flushed = less(magnitude, hn::Set(du, format_.flush_in_below));
      magnitude = hn::IfThenZeroElse(flushed, magnitude);
    }
    VU result = generic(magnitude, sign, random);
    if (format_.flush_out_below != 0) {
      const MU flushed = less(result, hn::Set(du, format_.flush_out_below));
      result = hn::IfThenZeroElse(flushed, result);
    }
    return result;
  }

  // As FloatRounder in emulation/kernels/scalar/rounding/float_rounder.h. Vector shifts by 32 or
  // more give zero, also those by a "negative" count: this is x86 behaviour, and this file is for
  // x86 vectors only.
  HWY_INLINE VU generic(VU magnitude, VU sign, VU random) const {
    const DU du;
    const VU least = hn::Set(du, format_.least);
    MU least_up;  // of magnitudes below least
    if (rounding_ == Rounding::kStochastic) {
      const VU field = hn::ShiftRight<kFloatFraction>(magnitude);
      const VU above = hn::Sub(hn::Max(field, hn::Set(du, format_.emin_field)), field);
      const VU shift = hn::Add(hn::Set(du, format_.drop), above);
      least_up = hn::Lt(random, fraction(magnitude, shift));
    } else {
      const VU to_zero =
          hn::IfThenElse(hn::Eq(sign, hn::Zero(du)), hn::Set(du, format_.to_zero_positive),
                         hn::Set(du, format_.to_zero_negative));
      least_up = less(to_zero, magnitude);
    }
    return hn::IfThenElse(less(magnitude, least), hn::IfThenElseZero(least_up, least),
                          usual(magnitude, sign, random));
  }

  // The same for zeros and magnitudes from the format's least number on that are not flushed.
  // Rounds up where the dropped part, in units of 2^-32 of the last place, is greater than a
  // threshold.
  HWY_INLINE VU usual(VU magnitude, VU sign, VU random) const {
    const DU du;
    const VU field = hn::ShiftRight<kFloatFraction>(magnitude);
    const VU kept = hn::Add(hn::Min(field, hn::Set(du, format_.emin_field)),
                            hn::Set(du, 32 - format_.drop - format_.emin_field));
    VU threshold = random;
    if (depends_on_last_) {
      const VU last = hn::Shr(hn::Xor(magnitude, hn::Set(du, format_.lowest_binade)),
                              hn::Sub(hn::Set(du, 32), kept));
      threshold = hn::Sub(hn::Set(du, thresholds_.positive), hn::And(last, hn::Set(du, 1)));
    } else if (rounding_ != Rounding::kStochastic) {
      const DI di;
      const VU negative = hn::BitCast(du, hn::ShiftRight<31>(hn::BitCast(di, sign)));
      threshold = hn::IfVecThenElse(negative, hn::Set(du, thresholds_.negative),
                                    hn::Set(du, thresholds_.positive));
    }
    const VU low = hn::Shr(hn::Set(du, ~0u), kept);  // the bits to be dropped
    const VU sum = hn::Add(magnitude, hn::Sub(low, hn::Shr(threshold, kept)));
    return hn::AndNot(low, sum);
  }

  // What is dropped over what it is dropped from, in units of 2^-32.
  static HWY_INLINE VU fraction(VU magnitude, VU shift) {
    const DU du;
    const VU implicit = hn::Set(du, 1u << kFloatFraction), units = hn::Set(du, 32);
    const VU bits = hn::And(magnitude, hn::Set(du, (1u << kFloatFraction) - 1));
    // The implicit bit of a subnormal float has no effect: it is shifted out to either side.
    const VU significand = hn::Or(bits, implicit);
    return hn::Or(hn::Shl(significand, hn::Sub(units, shift)),
                  hn::Shr(significand, hn::Sub(shift, units)));
  }

  // The thresholds of usual(), by x's sign; stochastic rounding has a random number in their place.
  // In nearest even and odd the threshold is for an even last place, and one less for an odd one: 0
  // becomes kNever.
  struct Thresholds {
    explicit Thresholds(Rounding rounding) {
      constexpr uint32_t kAlways = 0, kNever = ~0u, kHalf = 0x80000000;  // always: if inexact
      switch (rounding) {
        case Rounding::kNearestEven:
          positive = negative = kHalf;
          break;
        case Rounding::kNearestAway:
          positive = negative = kHalf - 1;
          break;
        case Rounding::kTowardZero:
          positive = negative = kNever;
          break;
        case Rounding::kUp:
          positive = kAlways, negative = kNever;
          break;
        case Rounding::kDown:
          positive = kNever, negative = kAlways;
          break;
        case Rounding::kOdd:
          positive = negative = kAlways;
          break;
        case Rounding::kStochastic:
          break;
      }
    }
    uint32_t positive = 0, negative = 0;
  };

  Rounding rounding_;
  bool depends_on_last_;
  Thresholds thresholds_;
  uint32_t unusual_less_1_;  // magnitudes up to this, but for zero, may need flushing()
  FloatFormat format_;
};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
