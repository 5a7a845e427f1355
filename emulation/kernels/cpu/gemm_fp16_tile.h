// A matrix product made of instructions that add one product, rounded once to FP16, to 32 sums. A
// word is one FP16 factor. Roundings up and down detect inexact steps: their results differ.
// Half: 32 FP16 numbers in lanes and the effect of one instruction on them; a mask has a bit per
// lane. gemm_fp16.cc has the hardware version, tests have a software version. The including file
// defines LOCKSTEP_HALF_TARGET, an attribute or nothing: the instructions to compile for.
#ifndef LOCKSTEP_HALF_TARGET
#error "define LOCKSTEP_HALF_TARGET before including gemm_fp16_tile.h"
#endif
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "emulation/kernels/cpu/gemm_blocks.h"

namespace lockstep {

//   struct Half {
//     using Sums = ...;
//     static uint16_t code(float);                          // of an FP16 value
//     static Sums load(const uint16_t*), broadcast(uint16_t);
//     static Sums load_sums(const float*, uint32_t mask);   // of FP16 values; +0 where not masked
//     static void store_sums(Sums, float*, uint32_t mask);  // NaN canonical
//     static Sums fma(x, y, acc), fma_down(x, y, acc), fma_up(x, y, acc);
//     static uint32_t not_finite(x), is_nan(x), is_zero(x), differ(x, y);  // differ: NaN does not
//   };
inline constexpr int kHalfLanes = 32;

template <class Half>
struct Fp16Tile {
  using Sums = typename Half::Sums;
  using Mask = uint32_t;
  static Mask first_lanes(int count) {
    return static_cast<Mask>((uint64_t{1} << std::min(count, kHalfLanes)) - 1);
  }
  using Word = uint16_t;
  static constexpr int kStep = 1;
  static constexpr int kRows = 14, kVectors = 2, kCols = kVectors * kHalfLanes;
  static constexpr int64_t kAlign = 1;
  static constexpr int64_t kBlock = 1024;  // a panel of A: 14 x 1024 words, 28 KB

  template <int kStride>
  LOCKSTEP_HALF_TARGET static void pack(const PackArgs& p, Word* panels) {
    for (int64_t line = 0; line < p.lines; line += p.width, panels += p.panel_step) {
      const int64_t lines = std::min(p.width, p.lines - line);
      for (int64_t k = 0; k < p.factors; ++k) {
        const float* in = p.in + line * p.line_step + k * p.k_step;
        for (int i = 0; i < kStride; ++i) {
          const float x = i < lines ? in[i * p.line_step] : 0;
          panels[k * kStride + i] = Half::code(x);
        }
      }
    }
  }
  static void pack_a(const PackArgs& p, Word* panel) { pack<kRows>(p, panel); }
  static void pack_b(const PackArgs& p, Word* panel) { pack<kCols>(p, panel); }

  template <int kM, int kN>
  LOCKSTEP_HALF_TARGET static void tile(const UnitTile<Word>& t) {
    const Mask last = first_lanes(t.cols - (kN - 1) * kHalfLanes);
    Sums acc[kM][kN];
#pragma GCC unroll 16
    for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kN; ++j) {
        const Mask mask = !t.load_c ? 0 : j + 1 == kN ? last : ~Mask{0};
        acc[i][j] = Half::load_sums(t.c + i * t.ldc + j * kHalfLanes, mask);
      }
    }
    const Word* __restrict a = t.a;
    const Word* __restrict b = t.b;
    for (int64_t k = 0; k < t.words; ++k, a += kRows, b += kCols) {
      Sums row[kN];
#pragma GCC unroll 2
      for (int j = 0; j < kN; ++j) {
        row[j] = Half::load(b + j * kHalfLanes);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kM; ++i) {
        const Sums x = Half::broadcast(a[i]);
#pragma GCC unroll 2
        for (int j = 0; j < kN; ++j) acc[i][j] = Half::fma(x, row[j], acc[i][j]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kN; ++j) {
        Half::store_sums(acc[i][j], t.c + i * t.ldc + j * kHalfLanes,
                         j + 1 == kN ? last : ~Mask{0});
      }
    }
  }

  // Row by row, 32 sums at a time.
  LOCKSTEP_HALF_TARGET static void tile_with_events(const UnitTile<Word>& t) {
    for (int i = 0; i < t.rows; ++i) {
      for (int j = 0; j < t.cols; j += kHalfLanes) {
        const Mask inside = first_lanes(t.cols - j);
        float* c = t.c + i * t.ldc + j;
        Sums acc = Half::load_sums(c, t.load_c ? inside : 0);
        Mask inexact = 0, to_zero = 0, to_infinity = 0, nan = 0;
        for (int64_t k = 0; k < t.words; ++k) {
          const Sums x = Half::broadcast(t.a[k * kRows + i]), y = Half::load(t.b + k * kCols + j);
          const Sums down = Half::fma_down(x, y, acc), up = Half::fma_up(x, y, acc);
          const Mask infinite_or_nan =
              Half::not_finite(x) | Half::not_finite(y) | Half::not_finite(acc);
          acc = Half::fma(x, y, acc);
          // Zeros of unequal sign come from exact cancellation and compare equal.
          const Mask differ = Half::differ(down, up);
          const Mask unordered = Half::is_nan(acc);
          inexact |= differ;
          to_zero |= differ & Half::is_zero(acc);
          to_infinity |= ~infinite_or_nan & Half::not_finite(acc) & ~unordered;
          nan |= unordered;
        }
        Half::store_sums(acc, c, inside);
        for (int lane = 0; lane < std::min(kHalfLanes, t.cols - j); ++lane) {
          const auto bit = [&](Mask mask, uint8_t event) {
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
    kTable[static_cast<size_t>(t.rows - 1)][t.cols > kHalfLanes ? 1 : 0](t);
  }
};

}  // namespace lockstep
