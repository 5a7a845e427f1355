// Register tiles of the vector gemm whose running sums live in the container's own format: one
// fused multiply-add per k and element. Included once per instruction set.
#if defined(LOCKSTEP_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_GEMM_TILE_INL_H_
#undef LOCKSTEP_GEMM_TILE_INL_H_
#else
#define LOCKSTEP_GEMM_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <limits>
#include <utility>

#include "emulation/simd/gemm_plan.h"
#include "emulation/simd/narrow-inl.h"
#include "emulation/simd/targets.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

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
  const PanelFacts* a_facts;  // null where the kernel wants none
  const PanelFacts* b_facts;
};

// kRows x kVectors registers hold the sums: 14 x 2 of 32 with AVX-512, 6 x 2 of 16 with AVX2.
template <typename T>
struct FusedTile {
  using Element = T;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  static constexpr int kRows = HWY_TARGET == HWY_AVX3 ? 14 : 6;
  static constexpr int kVectors = 2;
  static constexpr int kCols = kVectors * kLanes;
  static constexpr bool kWantsFacts = false;

  template <int kM, int kN>
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
    const T* HWY_RESTRICT a = t.a;
    const T* HWY_RESTRICT b = t.b;
    for (int64_t k = 0; k < t.k; ++k, a += kRows, b += t.ldb) {
      V row[kN];
      HWY_UNROLL(2)
      for (int j = 0; j < kN; ++j) row[j] = hn::LoadU(d, b + j * kLanes);
      HWY_UNROLL(16)
      for (int i = 0; i < kM; ++i) {
        const V x = hn::Set(d, a[i]);
        HWY_UNROLL(2)
        for (int j = 0; j < kN; ++j) acc[i][j] = hn::MulAdd(x, row[j], acc[i][j]);
      }
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
  template <int... kI>
  static constexpr std::array<std::array<Function, 2>, kRows> table(
      std::integer_sequence<int, kI...>) {
    return {{{&run<kI + 1, 1>, &run<kI + 1, 2>}...}};
  }
  void operator()(const TileArgs<T>& t) const {
    static constexpr auto kTable = table(std::make_integer_sequence<int, kRows>());
    kTable[static_cast<size_t>(t.rows - 1)][t.cols > kLanes ? 1 : 0](t);
  }
};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
