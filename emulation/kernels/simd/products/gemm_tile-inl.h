// Register tiles of the vector gemm whose running sums have the container's own format: one fused
// multiply-add per k and element. Included once per instruction set.
#if defined(LOCKSTEP_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_GEMM_TILE_INL_H_
#undef LOCKSTEP_GEMM_TILE_INL_H_
#else
#define LOCKSTEP_GEMM_TILE_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "emulation/kernels/simd/products/gemm_plan.h"
#include "emulation/kernels/simd/rounding/narrow-inl.h"
#include "emulation/kernels/simd/targets.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// Into the second-level cache, bypassing the first one, which holds the panels in use.
HWY_INLINE void prefetch_second_level(const void* p) {
  __builtin_prefetch(p, /*rw=*/0, /*locality=*/2);
}

// One tile of C: `rows` x `cols` at c, with k ascending over a packed panel of A (k-major, kRows
// per k) and a strip of B whose row k starts at b + k * ldb. Both may be read up to kRows, kCols.
template <typename T>
struct TileArgs {
  int64_t k;
  const T* a;
  const T* b;
  int64_t ldb;
  int rows, cols;
  T* c;
  int64_t ldc;
  bool load_c;
  uint8_t* events;  // of c[0, 0], or null
  int64_t lde;
  const PanelFacts* a_facts;  // null if the kernel needs none
  const PanelFacts* b_facts;
  // Data that other tiles will read: a tile may fetch them into the caches while it multiplies.
  const T* next_c;  // the tile of C after this one, of the same shape, or null
  // Rows of B's next block, ahead_step apart, of ahead_run cache lines each: one line per k, row by
  // row. Null: nothing to fetch.
  const T* ahead;
  int64_t ahead_step, ahead_run;
};

// kRows x kVectors registers hold the sums: 14 x 2 of 32 with AVX-512, 6 x 2 of 16 with AVX2.
template <typename T>
struct FusedTile {
  static constexpr int64_t kCacheLine = kCacheLineBytes / static_cast<int64_t>(sizeof(T));
  using Element = T;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  static constexpr int kRows = HWY_TARGET == HWY_AVX3 ? 14 : 6;
  static constexpr int kVectors = 2;
  static constexpr int kCols = kVectors * kLanes;
  static constexpr bool kWantsFacts = false, kWholeDepth = false;

  template <int kM, int kN, bool kAhead>
  static HWY_NOINLINE void run(const TileArgs<T>& t) {
    const D d;
    const int last = t.cols - (kN - 1) * kLanes;  // columns in the last vector, 1 to kLanes
    const auto mask = hn::FirstN(d, static_cast<size_t>(last));
    V acc[kM][kN];
    HWY_UNROLL(16)
    for (int i = 0; i < kM; ++i) {
      HWY_UNROLL(2)
      for (int j = 0; j < kN; ++j) {
        const T* c = t.c + i * t.ldc + j * kLanes;
        acc[i][j] = !t.load_c     ? hn::Zero(d)
                    : j + 1 == kN ? hn::MaskedLoad(mask, d, c)
                                  : hn::LoadU(d, c);
      }
    }
    if (t.next_c != nullptr) {
      HWY_UNROLL(16)
      for (int i = 0; i < kM; ++i) {
        HWY_UNROLL(2)
        for (int j = 0; j < kN; ++j) hwy::Prefetch(t.next_c + i * t.ldc + j * kLanes);
      }
    }
    const T* HWY_RESTRICT a = t.a;
    const T* HWY_RESTRICT b = t.b;
    const auto step = [&] {
      V row[kN];
      HWY_UNROLL(2)
      for (int j = 0; j < kN; ++j) row[j] = hn::LoadU(d, b + j * kLanes);
      HWY_UNROLL(16)
      for (int i = 0; i < kM; ++i) {
        const V x = hn::Set(d, a[i]);
        HWY_UNROLL(2)
        for (int j = 0; j < kN; ++j) acc[i][j] = hn::MulAdd(x, row[j], acc[i][j]);
      }
      a += kRows;
      b += t.ldb;
    };
    if constexpr (kAhead) {
      const T* ahead = t.ahead;
      for (int64_t k = 0; k < t.k; k += t.ahead_run, ahead += t.ahead_step) {
        const int64_t run = std::min(t.ahead_run, t.k - k);
        for (int64_t i = 0; i < run; ++i) {
          prefetch_second_level(ahead + i * kCacheLine);
          step();
        }
      }
    } else {
      for (int64_t k = 0; k < t.k; ++k) step();
    }
    HWY_UNROLL(16)
    for (int i = 0; i < kM; ++i) {
      HWY_UNROLL(2)
      for (int j = 0; j < kN; ++j) {
        T* c = t.c + i * t.ldc + j * kLanes;
        const V sum = canonical(d, acc[i][j]);
        if (j + 1 == kN) {
          hn::BlendedStore(sum, mask, d, c);
        } else {
          hn::StoreU(sum, d, c);
        }
      }
    }
  }

  using Function = void (*)(const TileArgs<T>&);
  template <bool kAhead, int... kI>
  static constexpr std::array<std::array<Function, 2>, kRows> table(
      std::integer_sequence<int, kI...>) {
    return {{{&run<kI + 1, 1, kAhead>, &run<kI + 1, 2, kAhead>}...}};
  }
  void operator()(const TileArgs<T>& t) const {
    using Rows = std::make_integer_sequence<int, kRows>;
    static constexpr auto kPlain = table<false>(Rows()), kAhead = table<true>(Rows());
    const auto& functions = t.ahead != nullptr ? kAhead : kPlain;
    functions[static_cast<size_t>(t.rows - 1)][t.cols > kLanes ? 1 : 0](t);
  }
};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
