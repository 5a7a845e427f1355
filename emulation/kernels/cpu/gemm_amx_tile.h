// A matrix product made of AMX tiles.
// Each instruction sums 32 products for each of 16 x 16 outputs. A word is one pair of BF16 or FP16
// factors. The end of k uses tiles with fewer pairs, because zero products would turn a sum of -0
// into +0. Tiles: HardwareTiles (tile.h), or a software class with the same members.
#pragma once

#include <algorithm>
#include <bit>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/cpu/gemm_blocks.h"
#include "emulation/kernels/cpu/instructions.h"
#include "emulation/kernels/cpu/tile.h"

namespace lockstep {

// The position of word (pair, line): rows of a tile of A are lines, rows of a tile of B are pairs.
inline constexpr int64_t kTileWords = kTileRows * kTilePairs;
inline int64_t a_place(int64_t pair, int line) {
  return pair / kTilePairs * kTileWords + line * kTilePairs + pair % kTilePairs;
}
inline int64_t b_place(int64_t pair, int line) {
  return pair * kTileColumns + line;
}

template <class Tiles>
struct Bf16Word {
  static uint16_t of(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }
  static void dot() { Tiles::dot_bf16(); }
};
template <class Tiles>
struct Fp16Word {
  static uint16_t of(float x) {
    uint16_t half;
    cpu::vcvtps2ph(&x, &half, 1, Rounding::kNearestEven);  // exact
    return half;
  }
  static void dot() { Tiles::dot_fp16(); }
};

template <class Factor, class Tiles>
struct AmxTile {
  using Word = uint32_t;
  static constexpr int kStep = 2;
  static constexpr int kRows = kTileRows, kCols = kTileColumns;
  static constexpr int64_t kAlign = kTilePairs;  // A's tiles are stored whole
  static constexpr int64_t kBlock = 256;
  static_assert(kBlock % kTilePairs == 0, "sums of 32 products must not be cut");

  template <typename Place>
  static void pack(const PackArgs& p, Word* panels, int stride, Place place) {
    for (int64_t first = 0; first < p.lines; first += p.width, panels += p.panel_step) {
      for (int line = 0; line < stride; ++line) {
        const bool is_line = line < std::min(p.width, p.lines - first);
        const float* in = p.in + (is_line ? first + line : first) * p.line_step;
        for (int64_t k = 0; k < p.factors; k += 2) {
          const auto factor = [&](int64_t at) {
            return is_line && at < p.factors ? Word{Factor::of(in[at * p.k_step])} : Word{0};
          };
          constexpr int kFactorBits = 16;
          panels[place(k / 2, line)] = factor(k) | factor(k + 1) << kFactorBits;
        }
      }
    }
  }
  static void pack_a(const PackArgs& p, Word* panel) { pack(p, panel, kRows, a_place); }
  static void pack_b(const PackArgs& p, Word* panel) { pack(p, panel, kCols, b_place); }

  static void run(const UnitTile<Word>& t) {
    alignas(64) float sums[kTileRows * kTileColumns] = {};
    for (int i = 0; t.load_c && i < t.rows; ++i) {
      std::copy_n(t.c + i * t.ldc, t.cols, sums + i * kTileColumns);
    }
    const int64_t whole = t.words / kTilePairs * kTilePairs;
    if (whole > 0) add(t, sums, 0, whole, kTilePairs);
    if (whole < t.words) add(t, sums, whole, t.words, static_cast<int>(t.words - whole));
    for (int i = 0; i < t.rows; ++i) {
      for (int j = 0; j < t.cols; ++j) {
        t.c[i * t.ldc + j] = canonical_nan(sums[i * kTileColumns + j]);
      }
    }
  }

 private:
  static void add(const UnitTile<Word>& t, float* sums, int64_t begin, int64_t end, int pairs) {
    constexpr int64_t kRowBytes = kTileColumns * static_cast<int64_t>(sizeof(float));
    const typename Tiles::Session session({kTileRows, kTileColumns, pairs});
    Tiles::template load<kTileSum>(sums, kRowBytes);
    for (int64_t word = begin; word < end; word += pairs) {
      Tiles::template load<kTileA>(t.a + a_place(word, 0), kTilePairs * kBytesPerPair);
      Tiles::template load<kTileB>(t.b + b_place(word, 0), kTileColumns * kBytesPerPair);
      Factor::dot();
    }
    Tiles::template store<kTileSum>(sums, kRowBytes);
  }
};

// Requires: k > 0, an AMX unit's accumulator.
template <class Tiles>
void amx_gemm_on(const GemmArgs<float>& args) {
  static const Format& fp16 = find_format("fp16");
  if (args.accumulator->takes(fp16)) return UnitGemm<AmxTile<Fp16Word<Tiles>, Tiles>>(args).run();
  UnitGemm<AmxTile<Bf16Word<Tiles>, Tiles>>(args).run();
}

}  // namespace lockstep
