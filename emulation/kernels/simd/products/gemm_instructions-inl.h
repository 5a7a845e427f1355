// Sums of the CPU's dot instructions in vector lanes, for the register tiles of the vector gemm:
// the models of VDPBF16PS, AMX, and Arm's BFDOT and BFMMLA, step by step those of
// emulation/accumulator/cpu_dot.h. Included once per instruction set.
#if defined(LOCKSTEP_GEMM_INSTRUCTIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_GEMM_INSTRUCTIONS_INL_H_
#undef LOCKSTEP_GEMM_INSTRUCTIONS_INL_H_
#else
#define LOCKSTEP_GEMM_INSTRUCTIONS_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "emulation/accumulator/cpu_dot.h"
#include "emulation/kernels/simd/products/gemm_plan.h"
#include "emulation/kernels/simd/products/gemm_tile-inl.h"
#include "emulation/kernels/simd/products/gemm_units-inl.h"
#include "emulation/kernels/simd/rounding/narrow-inl.h"
#include "emulation/kernels/simd/targets.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// DAZ and FTZ: subnormals become zeros with the same sign.
HWY_INLINE FloatVec flush(FloatTag d, FloatVec x) {
  const auto min_normal = hn::Set(d, std::numeric_limits<float>::min());
  return hn::IfThenElse(hn::Lt(hn::Abs(x), min_normal), hn::CopySign(hn::Zero(d), x), x);
}

// flushing_fma in lanes. Requires: inputs without subnormals. Whether the machine's result is tiny
// follows from its own value. The exception is the smallest normal number, which may have been
// rounded up on the subnormals' coarser grid; there the scalar model decides.
HWY_INLINE FloatVec flushing_multiply_add(FloatTag d, FloatVec a, FloatVec b, FloatVec c) {
  const auto min_normal = hn::Set(d, std::numeric_limits<float>::min());
  const FloatVec sum = hn::MulAdd(a, b, c);
  const auto on_edge = hn::Eq(hn::Abs(sum), min_normal);
  if (HWY_LIKELY(hn::AllFalse(d, on_edge))) return flush(d, sum);
  constexpr size_t kLanes = hn::MaxLanes(FloatTag());
  alignas(64) float as[kLanes], bs[kLanes], cs[kLanes], sums[kLanes];
  hn::Store(a, d, as);
  hn::Store(b, d, bs);
  hn::Store(c, d, cs);
  hn::Store(flush(d, sum), d, sums);
  for (size_t i = 0; i < kLanes; ++i) {
    if (std::fabs(sums[i]) == std::numeric_limits<float>::min()) {
      sums[i] = flushing_fma(as[i], bs[i], cs[i]);
    }
  }
  return hn::Load(d, sums);
}

// Pairs of factors that join one sum, all of them without subnormals.
struct FlushedPairs : UnitDefaults {
  static constexpr bool kPadsPairs = true;
  static constexpr int64_t kPeriod = 2;
  struct State {
    FloatVec sum;
  };
  static HWY_INLINE State start(FloatTag d, FloatVec c) { return {flush(d, c)}; }
  static HWY_INLINE FloatVec factor(FloatTag d, FloatVec x) { return flush(d, x); }
  static HWY_INLINE FloatVec finish(FloatTag, State& s) { return s.sum; }
};

struct Bf16PairsUnit : FlushedPairs {
  static HWY_INLINE void add_pair(FloatTag d, FloatVec a0, FloatVec b0, FloatVec a1, FloatVec b1,
                                  State& s) {
    s.sum = flushing_multiply_add(d, a0, b0, flushing_multiply_add(d, a1, b1, s.sum));
  }
};

struct AmxUnit : UnitDefaults {
  static constexpr bool kPadsPairs = true;
  static constexpr int64_t kPeriod = 2 * kAmxTilePairs;
  struct State {
    FloatVec sum, even, odd;
  };
  static HWY_INLINE State start(FloatTag d, FloatVec c) {
    return {flush(d, c), hn::Zero(d), hn::Zero(d)};
  }
  static HWY_INLINE FloatVec factor(FloatTag d, FloatVec x) { return flush(d, x); }
  // A new instruction: the remainder of the last one joins the sum.
  static HWY_INLINE void begin(FloatTag d, int64_t k, State& s) {
    if (k == 0 || k % kPeriod != 0) return;
    join(d, s);
    s.even = s.odd = hn::Zero(d);
  }
  static HWY_INLINE void add_pair(FloatTag d, FloatVec a0, FloatVec b0, FloatVec a1, FloatVec b1,
                                  State& s) {
    s.even = flushing_multiply_add(d, a0, b0, s.even);
    s.odd = flushing_multiply_add(d, a1, b1, s.odd);
  }
  static HWY_INLINE FloatVec finish(FloatTag d, State& s) {
    join(d, s);
    return s.sum;
  }

 private:
  static HWY_INLINE void join(FloatTag d, State& s) {
    s.sum = flush(d, hn::Add(s.sum, flush(d, hn::Add(s.even, s.odd))));
  }
};

// x + y in Arm's mode, before the flush: to odd, infinity from 2^128 on. Requires: inputs without
// subnormals.
HWY_INLINE FloatVec add_in_arm_mode(FloatTag d, FloatVec x, FloatVec y) {
  const FloatVec sum = add_to_odd(d, x, y);
  // Near the overflow add_to_odd may have the wrong one of infinity and the largest float. Half the
  // sum does not overflow. A tiny term that loses its last bit there is still a nonzero one.
  const auto is_large = hn::Ge(hn::Abs(sum), hn::Set(d, 0x1p127f));
  if (HWY_LIKELY(hn::AllFalse(d, is_large))) return sum;
  const FloatVec half = hn::Set(d, 0.5f);
  const FloatVec half_sum = add_to_odd(d, hn::Mul(x, half), hn::Mul(y, half));
  return hn::IfThenElse(is_large, hn::Add(half_sum, half_sum), sum);
}

// BFDOT, BFMMLA. Products of BF16 factors have 16 bits: they are exact in FP32, or are flushed, or
// overflow.
struct ArmPairsUnit : FlushedPairs {
  static HWY_INLINE void add_pair(FloatTag d, FloatVec a0, FloatVec b0, FloatVec a1, FloatVec b1,
                                  State& s) {
    const FloatVec p0 = flush(d, hn::Mul(a0, b0)), p1 = flush(d, hn::Mul(a1, b1));
    const FloatVec both = flush(d, add_in_arm_mode(d, p0, p1));
    s.sum = flush(d, add_in_arm_mode(d, s.sum, both));
  }
};

// The same for calm tiles, where nothing is flushed and nothing overflows.
//   No factor is subnormal. Nonzero products are in [2^-80, 2^101) and multiples of 2^-94, so that
//   a nonzero `both` is at least 2^-94. Then sum + both is not tiny: with |sum| < 2^-95 it is above
//   2^-95; otherwise both terms are multiples of 2^-118, and so is their sum.
//   |both| < 2^102 is less than half an ulp of the largest float, so that a finite sum stays
//   finite.
struct CalmArmPairsUnit : ArmPairsUnit {
  static constexpr int kLowestProduct = -80, kHighestProduct = 100;

  static bool is_calm(const PanelFacts& a, const PanelFacts& b) {
    if (!is_finite(a) || !is_finite(b) || has_subnormals(a) || has_subnormals(b)) return false;
    const ProductExponents products(a, b);
    return products.lowest >= kLowestProduct && products.highest <= kHighestProduct;
  }
  static HWY_INLINE FloatVec factor(FloatTag, FloatVec x) { return x; }
  static HWY_INLINE void add_pair(FloatTag d, FloatVec a0, FloatVec b0, FloatVec a1, FloatVec b1,
                                  State& s) {
    const FloatVec both = multiply_add_to_odd(d, a1, b1, hn::Mul(a0, b0));
    s.sum = add_to_odd(d, s.sum, both);
  }
};

// BFDOT, BFMMLA with FEAT_EBF16: the products of a pair in double, where they are exact.
struct ArmPairsFusedUnit : UnitDefaults {
  static constexpr bool kPadsPairs = true;
  static constexpr int64_t kPeriod = 2;
  struct State {
    FloatVec sum;
  };
  static HWY_INLINE State start(FloatTag, FloatVec c) { return {c}; }
  static HWY_INLINE void add_pair(FloatTag d, FloatVec a0, FloatVec b0, FloatVec a1, FloatVec b1,
                                  State& s) {
    const auto lower = [&](FloatVec x)
                           HWY_ATTR { return hn::PromoteTo(DoubleTag(), hn::LowerHalf(x)); };
    const auto upper = [&](FloatVec x) HWY_ATTR {
      return hn::PromoteTo(DoubleTag(), hn::UpperHalf(hn::Half<FloatTag>(), x));
    };
    const auto both = hn::Combine(d, both_products(upper(a0), upper(b0), upper(a1), upper(b1)),
                                  both_products(lower(a0), lower(b0), lower(a1), lower(b1)));
    s.sum = hn::Add(s.sum, both);
  }
  static HWY_INLINE FloatVec finish(FloatTag, State& s) { return s.sum; }

 private:
  static HWY_INLINE hn::Vec<hn::Half<FloatTag>> both_products(DoubleVec a0, DoubleVec b0,
                                                              DoubleVec a1, DoubleVec b1) {
    const DoubleTag wide;
    const DoubleVec p0 = hn::Mul(a0, b0), p1 = hn::Mul(a1, b1), sum = hn::Add(p0, p1);
    return hn::DemoteTo(hn::Half<FloatTag>(), to_odd(wide, sum, two_sum_error(p0, p1, sum)));
  }
};

// The same for tiles whose finite products are floats: below 2^128, and multiples of the smallest
// subnormal.
struct CalmArmPairsFusedUnit : ArmPairsFusedUnit {
  static bool is_calm(const PanelFacts& a, const PanelFacts& b) {
    // Significands of 8 bits each: the last bit of a product is 14 places below its first.
    constexpr int kProductBits = 14, kLastExponent = -149, kEmax = 127;
    const ProductExponents products(a, b);
    return products.lowest - kProductBits >= kLastExponent && products.highest <= kEmax;
  }
  static HWY_INLINE void add_pair(FloatTag, FloatVec a0, FloatVec b0, FloatVec a1, FloatVec b1,
                                  State& s) {
    s.sum = hn::Add(s.sum, hn::MulAdd(a1, b1, hn::Mul(a0, b0)));
  }
};

// Runs `Calm`, a faster form of Unit, on tiles whose factors allow it.
template <class Unit, class Calm>
struct CalmUnitTile : UnitTile<Unit> {
  static constexpr bool kWantsFacts = true;
  void operator()(const TileArgs<float>& t) const {
    Calm::is_calm(*t.a_facts, *t.b_facts) ? UnitTile<Calm>()(t) : UnitTile<Unit>()(t);
  }
};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
