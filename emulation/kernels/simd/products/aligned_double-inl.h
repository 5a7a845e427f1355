// A tensor core's block in double lanes: any factors and any addend, infinities and NaN included.
// One lane is one output.
//
//   E       the largest of 2^(e_a + e_b), 2^e_c and 2^E_floor, as a power of two
//   term    trunc(a * b * 2^(F - E)), exact: products have 24 bits, exponents stay within +-700
//   sum     exact: an integer below 2^52. Infinities and NaN pass through it by the block's rule:
//           opposite infinities and 0 * infinity give NaN
//   result  sum * 2^(E - F), exact, rounded once to the output
//
// Included once per instruction set.
#if defined(LOCKSTEP_ALIGNED_DOUBLE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_ALIGNED_DOUBLE_INL_H_
#undef LOCKSTEP_ALIGNED_DOUBLE_INL_H_
#else
#define LOCKSTEP_ALIGNED_DOUBLE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <limits>

#include "emulation/accumulator/dot.h"
#include "emulation/format/power_of_two.h"
#include "emulation/kernels/simd/products/aligned_float-inl.h"
#include "emulation/kernels/simd/products/aligned_operands-inl.h"
#include "emulation/kernels/simd/products/aligned_rules.h"
#include "emulation/kernels/simd/rounding/narrow-inl.h"
#include "emulation/kernels/simd/targets.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// Requires: the powers of both sides are computed.
class DoubleBlock {
 public:
  explicit DoubleBlock(const BlockTask& task)
      : t_(task),
        spec_(task.rules->spec),
        register_format_(
            find_format(spec_.output == BlockOutput::kFp16NearestEven ? "fp16" : "fp32")),
        to_fp16_(find_format("fp16")) {}

  void run() const {
    for (int i = 0; i < t_.rows; ++i) {
      for (int j = 0; j < t_.columns; j += kLanes) compute_outputs(i, j);
    }
  }

 private:
  using HalfTag = hn::Rebind<float, DoubleTag>;
  using LongTag = hn::RebindToSigned<DoubleTag>;
  using LongVec = hn::Vec<LongTag>;
  using Mask = hn::Mask<DoubleTag>;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(DoubleTag()));
  static constexpr int kBias = 1023, kFractionBits = 52;

  HWY_INLINE DoubleVec infinity() const {
    return hn::Set(DoubleTag(), std::numeric_limits<double>::infinity());
  }
  static HWY_INLINE DoubleVec load(const float* x) {
    return hn::PromoteTo(DoubleTag(), hn::Load(HalfTag(), x));
  }

  // 2^e of an addend's encoding, so emin for subnormals; 0 for zero, infinity and NaN.
  HWY_INLINE DoubleVec power_of(DoubleVec c) const {
    const DoubleTag d;
    const LongTag di;
    const LongVec field = hn::Set(di, int64_t{0x7ff} << kFractionBits);
    const DoubleVec power = hn::Max(hn::BitCast(d, hn::And(hn::BitCast(di, c), field)),
                                    hn::Set(d, register_format_.min_normal()));
    const Mask has = hn::And(hn::Ne(c, hn::Zero(d)), hn::Lt(hn::Abs(c), infinity()));
    return hn::IfThenElseZero(has, power);
  }

  HWY_NOINLINE void compute_outputs(int i, int j) const {
    const DoubleTag d;
    const LongTag di;
    const float* HWY_RESTRICT a = t_.a->values + t_.first * kBlockRows + i;
    const float* HWY_RESTRICT b = t_.b->values + t_.first * kBlockColumns + j;
    const float* HWY_RESTRICT a_power = t_.a->powers + t_.first * kBlockRows + i;
    const float* HWY_RESTRICT b_power = t_.b->powers + t_.first * kBlockColumns + j;
    float* c = t_.c + i * kBlockColumns + j;
    const DoubleVec addend = load(c);

    const bool has_floor = spec_.exponent_floor != BlockSpec::kNoFloor;
    DoubleVec common = hn::Set(d, has_floor ? power_of_two(spec_.exponent_floor) : 0.0);
    common = hn::Max(common, power_of(addend));
    for (int k = 0; k < t_.count; ++k) {
      const DoubleVec power = hn::Mul(hn::Set(d, static_cast<double>(a_power[k * kBlockRows])),
                                      load(b_power + k * kBlockColumns));
      common = hn::Max(common, power);
    }
    // Without any term, E can have any value.
    common = hn::IfThenElse(hn::Eq(common, hn::Zero(d)), hn::Set(d, 1.0), common);
    const LongVec bits = hn::BitCast(di, common);
    const int64_t f = spec_.fraction_bits;
    const DoubleVec scale =
        hn::BitCast(d, hn::Sub(hn::Set(di, (2 * kBias + f) << kFractionBits), bits));
    const DoubleVec unit = hn::BitCast(d, hn::Sub(bits, hn::Set(di, f << kFractionBits)));

    const DoubleVec scaled_addend = hn::Mul(addend, scale);
    DoubleVec sum = hn::Trunc(scaled_addend);
    Mask cut = hn::Ne(sum, scaled_addend);
    for (int k = 0; k < t_.count; ++k) {
      const DoubleVec product =
          hn::Mul(hn::Set(d, static_cast<double>(a[k * kBlockRows])), load(b + k * kBlockColumns));
      const DoubleVec scaled = hn::Mul(product, scale);
      const DoubleVec term = hn::Trunc(scaled);
      sum = hn::Add(sum, term);
      cut = hn::Or(cut, hn::Ne(term, scaled));
    }
    sum = hn::Add(sum, hn::Zero(d));  // an empty or cancelled sum is +0
    const DoubleVec exact = hn::Mul(sum, unit);
    const DoubleVec result = round(exact);
    hn::Store(hn::DemoteTo(HalfTag(), result), HalfTag(), c);
    if (t_.events != nullptr) note_events(i, j, exact, result, cut);
  }

  HWY_INLINE DoubleVec round(DoubleVec x) const {
    const DoubleTag d;
    DoubleVec result;
    if (spec_.output == BlockOutput::kFp16NearestEven) {
      result = to_fp16_(d, x);
    } else {
      constexpr int kEmin = -126, kDoubleFraction = 52;
      const int fraction = spec_.output == BlockOutput::kE8m13TowardZero ? 13 : 23;
      const LongTag di;
      const LongVec kept = hn::Set(di, -(int64_t{1} << (kDoubleFraction - fraction)));
      const DoubleVec normal = hn::BitCast(d, hn::And(hn::BitCast(di, x), kept));
      const DoubleVec steps = hn::Trunc(hn::Mul(x, hn::Set(d, power_of_two(fraction - kEmin))));
      const DoubleVec subnormal = hn::Mul(steps, hn::Set(d, power_of_two(kEmin - fraction)));
      const DoubleVec size = hn::Abs(x);
      result = hn::IfThenElse(hn::Lt(size, hn::Set(d, power_of_two(kEmin))), subnormal, normal);
      // From 2^128 on; a NaN loses its payload's low bits and keeps its top bit.
      const Mask overflow = hn::Ge(size, hn::Set(d, power_of_two(kFloatBias + 1)));
      result = hn::IfThenElse(overflow, hn::CopySign(infinity(), x), result);
    }
    return spec_.keeps_negative_zero ? result : hn::Add(result, hn::Zero(d));
  }

  HWY_INLINE void note_events(int i, int j, DoubleVec exact, DoubleVec result, Mask cut) const {
    const DoubleTag d;
    const LongTag di;
    const hn::Rebind<uint32_t, DoubleTag> d32;
    const hn::RebindToUnsigned<LongTag> du;
    const auto bit = [&](Mask mask, int64_t event) HWY_ATTR {
      return hn::IfThenElseZero(hn::RebindMask(di, mask), hn::Set(di, event));
    };
    // If an infinity or NaN takes part, nothing is rounded.
    const Mask finite = hn::Lt(hn::Abs(exact), infinity());
    const Mask overflow = hn::And(finite, hn::Eq(hn::Abs(result), infinity()));
    const Mask inexact = hn::And(finite, hn::Or(cut, hn::Ne(result, exact)));
    const Mask to_zero = hn::And(inexact, hn::Eq(result, hn::Zero(d)));
    const LongVec seen = hn::Or(
        hn::Or(bit(inexact, kStepInexact), bit(to_zero, kStepToZero)),
        hn::Or(bit(overflow, kStepToInfinity | kStepInexact), bit(hn::IsNaN(result), kStepNan)));
    uint32_t* events = t_.events + i * kBlockColumns + j;
    const auto seen_32 = hn::TruncateTo(d32, hn::BitCast(du, seen));
    hn::Store(hn::Or(hn::Load(d32, events), seen_32), d32, events);
  }

  const BlockTask& t_;
  const BlockSpec& spec_;
  const Format& register_format_;
  const DoubleRound to_fp16_;
};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
