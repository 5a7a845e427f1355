// VDPBF16PS: each instruction adds two products, the odd k first, to 16 sums. A word is one pair of
// BF16 factors, the even k in its low half. Operands are BF16 values, whose FP32 bits end in 16
// zeros: packing drops them.

#include <array>
#include <utility>

#include "emulation/kernels/cpu/gemm.h"
#include "emulation/kernels/cpu/gemm_blocks.h"
#include "emulation/kernels/cpu/intrinsics.h"

namespace lockstep {
namespace {

#define LOCKSTEP_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

constexpr int kLanes = 16;
constexpr int kBf16Bits = 16;

LOCKSTEP_TARGET inline __mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

// Rows k and k + 1 of 16 lines as 16 pairs.
LOCKSTEP_TARGET inline __m512i join_pairs(__m512i even, __m512i odd) {
  const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  // Bits of `odd` where the mask is set, else of `even` shifted down: (odd & m) | (even & ~m).
  constexpr int kSelect = 0xca;
  return _mm512_ternarylogic_epi32(high_half, odd, _mm512_srli_epi32(even, kBf16Bits), kSelect);
}

// Rows that are prefetched: pieces of rows far apart, which the hardware does not predict.
constexpr int64_t kRowsAhead = 16;

// Lines next to each other in memory, k by k over all panels, so that rows are read in long runs.
template <int kStride>
LOCKSTEP_TARGET void pack_side_by_side(const PackArgs& p, uint32_t* panels) {
  for (int64_t k = 0; k < p.factors; k += 2, panels += kStride) {
    const float* even = p.in + k * p.k_step;
    const float* odd = k + 1 < p.factors ? even + p.k_step : nullptr;
    if (k + kRowsAhead + 1 < p.factors) {
      const float* ahead = even + kRowsAhead * p.k_step;
      for (int64_t line = 0; line < p.lines; line += kLanes) {
        _mm_prefetch(ahead + line, _MM_HINT_T0);
        _mm_prefetch(ahead + p.k_step + line, _MM_HINT_T0);
      }
    }
    uint32_t* out = panels;
    for (int64_t line = 0; line < p.lines; line += p.width, out += p.panel_step) {
      const int64_t lines = std::min(p.width, p.lines - line);
      for (int at = 0; at < kStride; at += kLanes) {
        const __mmask16 inside = first_lanes(lines - at), stored = first_lanes(kStride - at);
        const __m512 low = _mm512_maskz_loadu_ps(inside, even + line + at);
        const __m512 high =
            odd != nullptr ? _mm512_maskz_loadu_ps(inside, odd + line + at) : _mm512_setzero_ps();
        _mm512_mask_storeu_epi32(out + at, stored,
                                 join_pairs(_mm512_castps_si512(low), _mm512_castps_si512(high)));
      }
    }
  }
}

// Transposes 16 rows of 16 words.
LOCKSTEP_TARGET inline void transpose(__m512i (&r)[kLanes]) {
  __m512i t[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Now r[4 q + c] holds, in 128-bit lane l, column 4 l + c of rows 4 q to 4 q + 3.
  constexpr int kEven = 0x88, kOdd = 0xdd;  // lanes 0 and 2, or 1 and 3, of each source
#pragma GCC unroll 16
  for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_shuffle_i32x4(r[c], r[c + 4], kEven);
    const __m512i odd_low = _mm512_shuffle_i32x4(r[c], r[c + 4], kOdd);
    const __m512i even_high = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], kEven);
    const __m512i odd_high = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], kOdd);
    t[c] = _mm512_shuffle_i32x4(even_low, even_high, kEven);
    t[c + 4] = _mm512_shuffle_i32x4(odd_low, odd_high, kEven);
    t[c + 8] = _mm512_shuffle_i32x4(even_low, even_high, kOdd);
    t[c + 12] = _mm512_shuffle_i32x4(odd_low, odd_high, kOdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) r[i] = t[i];
}

// Each line contiguous along k: 16 pairs of 16 lines of one panel at a time.
template <int kStride>
LOCKSTEP_TARGET void pack_panel(const PackArgs& p, const float* in, int64_t lines,
                                uint32_t* panel) {
  alignas(64) static constexpr uint16_t kHighHalves[2 * kLanes] = {
      1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
      33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i high_halves = _mm512_load_si512(kHighHalves);
  for (int64_t k = 0; k < p.factors; k += 2 * kLanes) {
    const __mmask16 low = first_lanes(p.factors - k), high = first_lanes(p.factors - k - kLanes);
    const int64_t pairs = std::min<int64_t>(kLanes, (p.factors - k + 1) / 2);
    uint32_t* out = panel + k / 2 * kStride;
    for (int at = 0; at < kStride; at += kLanes) {
      const __mmask16 stored = first_lanes(kStride - at);
      __m512i r[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const bool inside = at + i < lines;
        const float* line = in + (inside ? at + i : 0) * p.line_step + k;
        const __m512 x = _mm512_maskz_loadu_ps(inside ? low : 0, line);
        const __m512 y = _mm512_maskz_loadu_ps(inside ? high : 0, line + kLanes);
        r[i] =
            _mm512_permutex2var_epi16(_mm512_castps_si512(x), high_halves, _mm512_castps_si512(y));
      }
      transpose(r);
      for (int64_t pair = 0; pair < pairs; ++pair) {
        _mm512_mask_storeu_epi32(out + pair * kStride + at, stored, r[pair]);
      }
    }
  }
}

template <int kStride>
void pack(const PackArgs& p, uint32_t* panels) {
  if (p.line_step == 1) return pack_side_by_side<kStride>(p, panels);
  for (int64_t line = 0; line < p.lines; line += p.width, panels += p.panel_step) {
    pack_panel<kStride>(p, p.in + line * p.line_step, std::min(p.width, p.lines - line), panels);
  }
}

struct Bf16Tile {
  using Word = uint32_t;
  static constexpr int kStep = 2;
  static constexpr int kRows = 14, kVectors = 2, kCols = kVectors * kLanes;
  static constexpr int64_t kAlign = 1;
  static constexpr int64_t kBlock =
      512;  // a panel of A: 14 x 512 words, 28 KB of a first-level cache

  static void pack_a(const PackArgs& p, Word* panel) { pack<kRows>(p, panel); }
  static void pack_b(const PackArgs& p, Word* panel) { pack<kCols>(p, panel); }

  template <int kM, int kN>
  LOCKSTEP_TARGET static void tile(const UnitTile<Word>& t) {
    const __mmask16 last = first_lanes(t.cols - (kN - 1) * kLanes);
    __m512 acc[kM][kN];
#pragma GCC unroll 16
    for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kN; ++j) {
        const __mmask16 mask = !t.load_c ? 0 : j + 1 == kN ? last : 0xffff;
        acc[i][j] = _mm512_maskz_loadu_ps(mask, t.c + i * t.ldc + j * kLanes);
      }
    }
    const Word* __restrict a = t.a;
    const Word* __restrict b = t.b;
    for (int64_t k = 0; k < t.words; ++k, a += kRows, b += kCols) {
      __m512bh row[kN];
#pragma GCC unroll 2
      for (int j = 0; j < kN; ++j) {
        row[j] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + j * kLanes));
      }
#pragma GCC unroll 16
      for (int i = 0; i < kM; ++i) {
        const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[i])));
#pragma GCC unroll 2
        for (int j = 0; j < kN; ++j) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], x, row[j]);
      }
    }
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
#pragma GCC unroll 16
    for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kN; ++j) {
        const __mmask16 unordered = _mm512_cmp_ps_mask(acc[i][j], acc[i][j], _CMP_UNORD_Q);
        const __m512 sum = _mm512_mask_mov_ps(acc[i][j], unordered, nan);
        _mm512_mask_storeu_ps(t.c + i * t.ldc + j * kLanes, j + 1 == kN ? last : 0xffff, sum);
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
    static constexpr auto kTable = table(std::make_integer_sequence<int, kRows>());
    kTable[static_cast<size_t>(t.rows - 1)][t.cols > kLanes ? 1 : 0](t);
  }
};

}  // namespace

void avx512_bf16_gemm(const GemmArgs<float>& args) {
  UnitGemm<Bf16Tile>(args).run();
}

}  // namespace lockstep
