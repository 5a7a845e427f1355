// Register tiles of the vector gemm for sums that take factors in pairs or round twice per step:
// the models of VDPBF16PS and of AMX, and FP32 multiply-then-add. The steps are those of
// emulation/accumulator/cpu_dot.h and emulation/accumulator/dot.h, across columns. Included once
// per instruction set.
#if defined(LOCKSTEP_GEMM_UNITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_GEMM_UNITS_INL_H_
#undef LOCKSTEP_GEMM_UNITS_INL_H_
#else
#define LOCKSTEP_GEMM_UNITS_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "emulation/accumulator/cpu_dot.h"
#include "emulation/kernels/simd/gemm_plan.h"
#include "emulation/kernels/simd/gemm_tile-inl.h"
#include "emulation/kernels/simd/narrow-inl.h"
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

// A unit: the state of one vector of sums, and the effect of a pair of factors on it. `k` counts
// from the start of a block of the gemm, whose length is a multiple of kPeriod except in the last
// block.
struct Bf16PairsUnit {
  static constexpr bool kPadsPairs = true;  // a missing second factor is +0
  static constexpr int64_t kPeriod = 2;
  struct State {
    FloatVec sum;
  };
  static HWY_INLINE State start(FloatTag d, FloatVec c) { return {flush(d, c)}; }
  static HWY_INLINE FloatVec factor(FloatTag d, FloatVec x) { return flush(d, x); }
  static HWY_INLINE void begin(FloatTag, int64_t, State&) {}
  static HWY_INLINE void pair(FloatTag d, FloatVec a0, FloatVec b0, FloatVec a1, FloatVec b1,
                              State& s) {
    s.sum = flushing_multiply_add(d, a0, b0, flushing_multiply_add(d, a1, b1, s.sum));
  }
  static HWY_INLINE FloatVec finish(FloatTag, State& s) { return s.sum; }
};

struct AmxUnit {
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
  static HWY_INLINE void pair(FloatTag d, FloatVec a0, FloatVec b0, FloatVec a1, FloatVec b1,
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

struct UnfusedUnit {
  static constexpr bool kPadsPairs = false;
  static constexpr int64_t kPeriod = 1;
  struct State {
    FloatVec sum;
  };
  static HWY_INLINE State start(FloatTag, FloatVec c) { return {c}; }
  static HWY_INLINE FloatVec factor(FloatTag, FloatVec x) { return x; }
  static HWY_INLINE void begin(FloatTag, int64_t, State&) {}
  static HWY_INLINE void single(FloatVec a, FloatVec b, State& s) {
    s.sum = hn::Add(s.sum, hn::Mul(a, b));
  }
  static HWY_INLINE void pair(FloatTag, FloatVec a0, FloatVec b0, FloatVec a1, FloatVec b1,
                              State& s) {
    single(a0, b0, s);
    single(a1, b1, s);
  }
  static HWY_INLINE FloatVec finish(FloatTag, State& s) { return s.sum; }
};

template <class Unit>
struct UnitTile {
  using Element = float;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
  static constexpr int kRows = 4, kVectors = 2;
  static constexpr int kCols = kVectors * kLanes;
  static constexpr bool kWantsFacts = false;
  static_assert(kDepthStep % Unit::kPeriod == 0, "a block of k must end between instructions");

  void operator()(const TileArgs<float>& t) const {
    for (int j = 0; j < t.cols; j += kLanes) {
      const int cols = t.cols - j < kLanes ? t.cols - j : kLanes;
      switch (t.rows) {
        case 1:
          column<1>(t, j, cols);
          break;
        case 2:
          column<2>(t, j, cols);
          break;
        case 3:
          column<3>(t, j, cols);
          break;
        default:
          column<4>(t, j, cols);
      }
    }
  }

 private:
  template <int kM>
  static HWY_NOINLINE void column(const TileArgs<float>& t, int j, int cols) {
    const FloatTag d;
    const auto mask = hn::FirstN(d, static_cast<size_t>(cols));
    typename Unit::State states[kM];
    HWY_UNROLL(4)
    for (int i = 0; i < kM; ++i) {
      const float* c = t.c + i * t.ldc + j;
      states[i] = Unit::start(d, t.load_c ? hn::MaskedLoad(mask, d, c) : hn::Zero(d));
    }
    const float* b = t.b + j;
    int64_t k = 0;
    for (; k + 2 <= t.k; k += 2) {
      const FloatVec b0 = Unit::factor(d, hn::LoadU(d, b + k * t.ldb));
      const FloatVec b1 = Unit::factor(d, hn::LoadU(d, b + (k + 1) * t.ldb));
      const float* a = t.a + k * kRows;
      HWY_UNROLL(4)
      for (int i = 0; i < kM; ++i) {
        Unit::begin(d, k, states[i]);
        const FloatVec a0 = Unit::factor(d, hn::Set(d, a[i]));
        const FloatVec a1 = Unit::factor(d, hn::Set(d, a[kRows + i]));
        Unit::pair(d, a0, b0, a1, b1, states[i]);
      }
    }
    if (k < t.k) {
      const FloatVec b0 = Unit::factor(d, hn::LoadU(d, b + k * t.ldb));
      for (int i = 0; i < kM; ++i) {
        Unit::begin(d, k, states[i]);
        const FloatVec a0 = Unit::factor(d, hn::Set(d, t.a[k * kRows + i]));
        if constexpr (Unit::kPadsPairs) {
          Unit::pair(d, a0, b0, hn::Zero(d), hn::Zero(d), states[i]);
        } else {
          Unit::single(a0, b0, states[i]);
        }
      }
    }
    HWY_UNROLL(4)
    for (int i = 0; i < kM; ++i) {
      float* c = t.c + i * t.ldc + j;
      hn::BlendedStore(canonical(d, Unit::finish(d, states[i])), mask, d, c);
    }
  }
};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
