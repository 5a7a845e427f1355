// VFMADD231PH: each instruction adds one product, rounded once to FP16, to 32 sums. A word is one
// FP16 factor. What a step did is told by its roundings up and down: they differ where it is
// inexact.

#include <array>
#include <utility>

#include "emulation/cpu/gemm.h"
#include "emulation/cpu/gemm_blocks.h"
#include "emulation/cpu/intrinsics.h"

namespace lockstep {
namespace {

#define LOCKSTEP_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512fp16,f16c")))

constexpr int kLanes = 32, kFloatLanes = 16;

LOCKSTEP_TARGET inline __mmask32 first_lanes(int count) {
  return static_cast<__mmask32>((uint64_t{1} << std::min(count, kLanes)) - 1);
}

// 32 floats that are FP16 values.
LOCKSTEP_TARGET inline __m512h load_sums(const float* c, __mmask32 mask) {
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), c);
  const __m512 high =
      _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> kFloatLanes), c + kFloatLanes);
  const __m256i halves[] = {_mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT),
                            _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT)};
  return reinterpret_cast<__m512h>(
      _mm512_inserti64x4(_mm512_castsi256_si512(halves[0]), halves[1], 1));
}

LOCKSTEP_TARGET inline void store_sums(__m512h sum, float* c, __mmask32 mask) {
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
  const auto bits = reinterpret_cast<__m512i>(sum);
  const __m256i halves[] = {_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64(bits, 1)};
  for (int i = 0; i < 2; ++i) {
    const __m512 x = _mm512_cvtph_ps(halves[i]);
    const __mmask16 unordered = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const auto stored = static_cast<__mmask16>(mask >> (i * kFloatLanes));
    _mm512_mask_storeu_ps(c + i * kFloatLanes, stored, _mm512_mask_mov_ps(x, unordered, nan));
  }
}

// Which lanes are infinite or NaN.
LOCKSTEP_TARGET inline __mmask32 not_finite(__m512h x) {
  constexpr int kQuietNan = 0x01, kInfinities = 0x18, kSignallingNan = 0x80;
  return _mm512_fpclass_ph_mask(x, kQuietNan | kInfinities | kSignallingNan);
}

struct Fp16Tile {
  using Word = uint16_t;
  static constexpr int kStep = 1;
  static constexpr int kRows = 14, kVectors = 2, kCols = kVectors * kLanes;
  static constexpr int64_t kAlign = 1;
  static constexpr int64_t kBlock = 1024;  // a panel of A: 14 x 1024 words, 28 KB

  template <int kStride>
  LOCKSTEP_TARGET static void pack(const PackArgs& p, Word* panels) {
    for (int64_t line = 0; line < p.lines; line += p.width, panels += p.panel_step) {
      const int64_t lines = std::min(p.width, p.lines - line);
      for (int64_t k = 0; k < p.factors; ++k) {
        const float* in = p.in + line * p.line_step + k * p.k_step;
        for (int i = 0; i < kStride; ++i) {
          const float x = i < lines ? in[i * p.line_step] : 0;
          panels[k * kStride + i] =
              static_cast<Word>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));  // exact
        }
      }
    }
  }
  static void pack_a(const PackArgs& p, Word* panel) { pack<kRows>(p, panel); }
  static void pack_b(const PackArgs& p, Word* panel) { pack<kCols>(p, panel); }

  template <int kM, int kN>
  LOCKSTEP_TARGET static void tile(const UnitTile<Word>& t) {
    const __mmask32 last = first_lanes(t.cols - (kN - 1) * kLanes);
    __m512h acc[kM][kN];
#pragma GCC unroll 16
    for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kN; ++j) {
        const __mmask32 mask = !t.load_c ? 0 : j + 1 == kN ? last : ~__mmask32{0};
        acc[i][j] = load_sums(t.c + i * t.ldc + j * kLanes, mask);
      }
    }
    const Word* __restrict a = t.a;
    const Word* __restrict b = t.b;
    for (int64_t k = 0; k < t.words; ++k, a += kRows, b += kCols) {
      __m512h row[kN];
#pragma GCC unroll 2
      for (int j = 0; j < kN; ++j) {
        row[j] = reinterpret_cast<__m512h>(_mm512_loadu_si512(b + j * kLanes));
      }
#pragma GCC unroll 16
      for (int i = 0; i < kM; ++i) {
        const auto x = reinterpret_cast<__m512h>(_mm512_set1_epi16(static_cast<short>(a[i])));
#pragma GCC unroll 2
        for (int j = 0; j < kN; ++j) acc[i][j] = _mm512_fmadd_ph(x, row[j], acc[i][j]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kN; ++j) {
        store_sums(acc[i][j], t.c + i * t.ldc + j * kLanes, j + 1 == kN ? last : ~__mmask32{0});
      }
    }
  }

  // Row by row, 32 sums at a time.
  LOCKSTEP_TARGET static void tile_with_events(const UnitTile<Word>& t) {
    constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    constexpr int kUp = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
    const __m512h zero = _mm512_setzero_ph();
    for (int i = 0; i < t.rows; ++i) {
      for (int j = 0; j < t.cols; j += kLanes) {
        const __mmask32 inside = first_lanes(t.cols - j);
        float* c = t.c + i * t.ldc + j;
        __m512h acc = load_sums(c, t.load_c ? inside : 0);
        __mmask32 inexact = 0, to_zero = 0, to_infinity = 0, nan = 0;
        for (int64_t k = 0; k < t.words; ++k) {
          const auto x =
              reinterpret_cast<__m512h>(_mm512_set1_epi16(static_cast<short>(t.a[k * kRows + i])));
          const auto y = reinterpret_cast<__m512h>(_mm512_loadu_si512(t.b + k * kCols + j));
          const __m512h down = _mm512_fmadd_round_ph(x, y, acc, kDown);
          const __m512h up = _mm512_fmadd_round_ph(x, y, acc, kUp);
          const __mmask32 finite = ~(not_finite(x) | not_finite(y) | not_finite(acc));
          acc = _mm512_fmadd_ph(x, y, acc);
          // Zeros of unequal sign come from exact cancellation and compare equal.
          const __mmask32 differ = _mm512_cmp_ph_mask(down, up, _CMP_NEQ_OQ);
          const __mmask32 unordered = _mm512_cmp_ph_mask(acc, acc, _CMP_UNORD_Q);
          inexact |= differ;
          to_zero |= differ & _mm512_cmp_ph_mask(acc, zero, _CMP_EQ_OQ);
          to_infinity |= finite & not_finite(acc) & ~unordered;
          nan |= unordered;
        }
        store_sums(acc, c, inside);
        for (int lane = 0; lane < std::min(kLanes, t.cols - j); ++lane) {
          const auto bit = [&](__mmask32 mask, uint8_t event) {
            return (mask >> lane & 1) != 0 ? event : uint8_t{0};
          };
          t.events[i * t.lde + j + lane] |= bit(inexact, kStepInexact) | bit(to_zero, kStepToZero) |
                                            bit(to_infinity, kStepToInfinity) | bit(nan, kStepNan);
        }
      }
    }
  }

  using Function = void (*)(const UnitTile<Word>&);
  template <int... kI>
  static constexpr std::array<std::array<Function, kVectors>, kRows> table(
      std::integer_sequence<int, kI...>) {
    return {{{&tile<kI + 1, 1>, &tile<kI + 1, 2>}...}};
  }
  static void run(const UnitTile<Word>& t) {
    if (t.events != nullptr) return tile_with_events(t);
    static constexpr auto kTable = table(std::make_integer_sequence<int, kRows>());
    kTable[static_cast<size_t>(t.rows - 1)][t.cols > kLanes ? 1 : 0](t);
  }
};

}  // namespace

void avx512_fp16_gemm(const GemmArgs<float>& args) {
  UnitGemm<Fp16Tile>(args).run();
}

}  // namespace lockstep
