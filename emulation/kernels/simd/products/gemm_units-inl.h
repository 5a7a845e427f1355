// Register tiles of the vector gemm for sums whose steps are more than one fused multiply-add.
// A unit is the rule of one such sum, in the lanes of a vector; UnitTile runs it over a tile of C.
// Here: the chain in FP32 that rounds products, Kahan's and the pairwise sum. The steps are those
// of emulation/accumulator/dot.h; gemm_instructions-inl.h has those of CPU instructions. Included
// once per instruction set.
#if defined(LOCKSTEP_GEMM_UNITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_GEMM_UNITS_INL_H_
#undef LOCKSTEP_GEMM_UNITS_INL_H_
#else
#define LOCKSTEP_GEMM_UNITS_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <cstdint>
#include <utility>

#include "emulation/kernels/simd/products/gemm_plan.h"
#include "emulation/kernels/simd/products/gemm_tile-inl.h"
#include "emulation/kernels/simd/rounding/narrow-inl.h"
#include "emulation/kernels/simd/targets.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// What units have in common unless they define it themselves. A unit has
//   State          of one vector of sums; start() makes it from the addends, finish() ends it
//   factor()       changes a factor before it is used
//   add_pair()     adds two products; add_single(), the last one of an odd number
//   begin()        called before every pair. `k` counts from the start of a block of the gemm,
//                  whose length is a multiple of kPeriod except in the last block
struct UnitDefaults {
  static constexpr bool kPadsPairs = false;  // a missing second factor is +0; no add_single()
  static constexpr int64_t kPeriod = 1;
  static constexpr bool kWholeDepth = false;  // the state is more than C can hold
  static constexpr int kRows = 4;             // chains at once
  static HWY_INLINE FloatVec factor(FloatTag, FloatVec x) { return x; }
  template <class State>
  static HWY_INLINE void begin(FloatTag, int64_t, State&) {}
};

struct UnfusedUnit : UnitDefaults {
  struct State {
    FloatVec sum;
  };
  static HWY_INLINE State start(FloatTag, FloatVec c) { return {c}; }
  static HWY_INLINE void add_single(FloatVec a, FloatVec b, State& s) {
    s.sum = hn::Add(s.sum, hn::Mul(a, b));
  }
  static HWY_INLINE void add_pair(FloatTag, FloatVec a0, FloatVec b0, FloatVec a1, FloatVec b1,
                                  State& s) {
    add_single(a0, b0, s);
    add_single(a1, b1, s);
  }
  static HWY_INLINE FloatVec finish(FloatTag, State& s) { return s.sum; }
};

struct KahanUnit : UnitDefaults {
  static constexpr bool kWholeDepth = true;
  // A step is four dependent additions: eight rows hide them. AVX2 has registers for four.
  static constexpr int kRows = HWY_TARGET == HWY_AVX3 ? 8 : 4;
  struct State {
    FloatVec sum, lost;
  };
  static HWY_INLINE State start(FloatTag d, FloatVec c) { return {c, hn::Zero(d)}; }
  static HWY_INLINE void add_single(FloatVec a, FloatVec b, State& s) {
    const FloatVec y = hn::Sub(hn::Mul(a, b), s.lost);
    const FloatVec t = hn::Add(s.sum, y);
    s.lost = hn::Sub(hn::Sub(t, s.sum), y);
    s.sum = t;
  }
  static HWY_INLINE void add_pair(FloatTag, FloatVec a0, FloatVec b0, FloatVec a1, FloatVec b1,
                                  State& s) {
    add_single(a0, b0, s);
    add_single(a1, b1, s);
  }
  static HWY_INLINE FloatVec finish(FloatTag, State& s) { return s.sum; }
};

// A binary counter, as in the scalar loop: level j holds the sum of 2^j products where bit j of
// `count` is set.
struct PairwiseUnit : UnitDefaults {
  static constexpr bool kWholeDepth = true;
  static constexpr int kLevels = 63;  // of any count
  struct State {
    FloatVec start;
    int64_t count;
    FloatVec levels[kLevels];
  };
  static HWY_INLINE State start(FloatTag, FloatVec c) {
    State s;
    s.start = c;
    s.count = 0;
    return s;
  }
  static HWY_INLINE void add_pair(FloatTag, FloatVec a0, FloatVec b0, FloatVec a1, FloatVec b1,
                                  State& s) {
    FloatVec sum = hn::Add(hn::Mul(a0, b0), hn::Mul(a1, b1));
    int level = 1;
    for (int64_t carry = s.count >> 1; (carry & 1) != 0; carry >>= 1) {
      sum = hn::Add(s.levels[level++], sum);
    }
    s.levels[level] = sum;
    s.count += 2;
  }
  static HWY_INLINE void add_single(FloatVec a, FloatVec b, State& s) {
    s.levels[0] = hn::Mul(a, b);
    s.count += 1;
  }
  // Leftovers are added from the right, the addend last. Requires: count > 0.
  static HWY_INLINE FloatVec finish(FloatTag, State& s) {
    int level = 0;
    while ((s.count >> level & 1) == 0) ++level;
    FloatVec total = s.levels[level];
    for (++level; s.count >> level != 0; ++level) {
      if ((s.count >> level & 1) != 0) total = hn::Add(s.levels[level], total);
    }
    return hn::Add(s.start, total);
  }
};

template <class Unit>
struct UnitTile {
  using Element = float;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
  static constexpr int kRows = Unit::kRows, kVectors = 2;
  static constexpr int kCols = kVectors * kLanes;
  static constexpr bool kWantsFacts = false, kWholeDepth = Unit::kWholeDepth;
  static_assert(kDepthStep % Unit::kPeriod == 0, "a block of k must end between instructions");

  void operator()(const TileArgs<float>& t) const {
    static constexpr auto kTable = table(std::make_integer_sequence<int, kRows>());
    for (int j = 0; j < t.cols; j += kLanes) {
      kTable[static_cast<size_t>(t.rows - 1)](t, j, t.cols - j < kLanes ? t.cols - j : kLanes);
    }
  }

 private:
  using Function = void (*)(const TileArgs<float>&, int, int);
  template <int... kI>
  static constexpr std::array<Function, kRows> table(std::integer_sequence<int, kI...>) {
    return {&column<kI + 1>...};
  }

  template <int kM>
  static HWY_NOINLINE void column(const TileArgs<float>& t, int j, int cols) {
    const FloatTag d;
    const auto mask = hn::FirstN(d, static_cast<size_t>(cols));
    typename Unit::State states[kM];
    HWY_UNROLL(8)
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
      HWY_UNROLL(8)
      for (int i = 0; i < kM; ++i) {
        Unit::begin(d, k, states[i]);
        const FloatVec a0 = Unit::factor(d, hn::Set(d, a[i]));
        const FloatVec a1 = Unit::factor(d, hn::Set(d, a[kRows + i]));
        Unit::add_pair(d, a0, b0, a1, b1, states[i]);
      }
    }
    if (k < t.k) {
      const FloatVec b0 = Unit::factor(d, hn::LoadU(d, b + k * t.ldb));
      for (int i = 0; i < kM; ++i) {
        Unit::begin(d, k, states[i]);
        const FloatVec a0 = Unit::factor(d, hn::Set(d, t.a[k * kRows + i]));
        if constexpr (Unit::kPadsPairs) {
          Unit::add_pair(d, a0, b0, hn::Zero(d), hn::Zero(d), states[i]);
        } else {
          Unit::add_single(a0, b0, states[i]);
        }
      }
    }
    HWY_UNROLL(8)
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
