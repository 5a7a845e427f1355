// Cuts up a matrix product for a unit with packed operands.
// Packing, blocking and threads, shared by the units; each unit has its own register tiles.
// Operands are packed into words: kStep neighbours along k, in the unit's format. C holds the
// running sums between blocks of k. This is exact, since they are FP32 values.
//
//   struct Tile {
//     using Word = uint32_t;                   // kStep packed factors
//     static constexpr int kStep, kRows, kCols;
//     static constexpr int64_t kBlock;         // words of k per block, kStep * kBlock factors
//     static constexpr int64_t kAlign;         // panels hold a multiple of so many words
//     static void pack_a(const PackArgs&, Word* panels);  // of kRows lines
//     static void pack_b(const PackArgs&, Word* panels);  // of kCols lines
//     static void run(const UnitTile<Word>&);
//   };
#pragma once

#include <algorithm>
#include <cstdint>

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/products/gemm_plan.h"
#include "src/core/parallel.h"

namespace lockstep {

// Lines of one operand along k: element (line, k) at in[line * line_step + k * k_step]; one of the
// two steps is 1. They go to panels of at most `width` lines, `panel_step` words apart. Places of a
// panel beyond its lines or `factors` are filled with zeros.
struct PackArgs {
  const float* in;
  int64_t line_step, k_step;
  int64_t lines, width, panel_step;
  int64_t factors;  // along k
};

// One tile of C.
template <typename Word>
struct UnitTile {
  int64_t words;  // along k
  const Word* a;
  const Word* b;
  int rows, cols;
  float* c;
  int64_t ldc;
  bool load_c;      // otherwise the sums start from +0
  uint8_t* events;  // of c[0, 0], or null
  int64_t lde;
};

// For every block of k and of rows: A is packed once. Then each task packs its strips of B, which
// stay in a second-level cache while all panels of A are read.
template <class Tile>
class UnitGemm {
 public:
  explicit UnitGemm(const GemmArgs<float>& g)
      : g_(g),
        serial_(g.m * g.n * g.k <= kSerialWork),
        block_m_(block_size(g.m, kBlockM, kRows)),
        block_k_(block_size(g.k, Tile::kBlock * Tile::kStep, kDepthStep)) {}

  void run() const {
    for (int64_t k = 0; k < g_.k; k += block_k_) {
      for (int64_t i = 0; i < g_.m; i += block_m_) {
        multiply({.row = i,
                  .rows = std::min(block_m_, g_.m - i),
                  .k = k,
                  .factors = std::min(block_k_, g_.k - k)});
      }
    }
  }

 private:
  using Word = typename Tile::Word;
  static constexpr int64_t kRows = Tile::kRows, kCols = Tile::kCols;
  static_assert(kDepthStep % (Tile::kStep * Tile::kAlign) == 0, "words must not be cut");
  // Strips of B that fit into half of a second-level cache of 1 MB.
  static constexpr int64_t kStripBytes = Tile::kBlock * kCols * static_cast<int64_t>(sizeof(Word));
  static constexpr int64_t kGroup = std::max<int64_t>(1, kGroupBytes / kStripBytes);
  // Panels of A that one task packs.
  static constexpr int64_t kPackedPanels = 8;
  // Fewer rows than this are not worth packing a group of strips a second time.
  static constexpr int64_t kFewestRows = 512;

  struct Block {
    int64_t row, rows, k, factors;
  };

  template <typename Body>
  void spread(int64_t count, Body body) const {
    if (serial_ || count == 1) {
      for (int64_t i = 0; i < count; ++i) body(i);
    } else {
      parallel_for(count, body);
    }
  }

  // Lines of an operand whose stored rows run along k, or across it.
  static PackArgs lines_of(const float* x, bool k_is_row, int64_t ld, int64_t line,
                           const Block& block) {
    const int64_t line_step = k_is_row ? 1 : ld, k_step = k_is_row ? ld : 1;
    PackArgs args = {};
    args.in = x + line * line_step + block.k * k_step;
    args.line_step = line_step;
    args.k_step = k_step;
    args.factors = block.factors;
    return args;
  }

  void multiply(const Block& block) const {
    const int64_t words = ceil_div(block.factors, Tile::kStep);
    const int64_t held = ceil_div(words, Tile::kAlign) * Tile::kAlign;
    const int64_t panels = ceil_div(block.rows, kRows);
    const int64_t panel_rows = ceil_div(block.rows, panels);  // equal panels, no short last one
    static thread_local Workspace<Word> a_space;
    Word* a = a_space.get(static_cast<size_t>(panels * kRows * held)).data();
    const int64_t pack_tasks = ceil_div(panels, kPackedPanels);
    spread(pack_tasks, [&](int64_t task) {
      const int64_t row = task * kPackedPanels * panel_rows;
      PackArgs args = lines_of(g_.a, g_.transpose_a, g_.lda, block.row + row, block);
      args.lines = std::min(kPackedPanels * panel_rows, block.rows - row);
      args.width = panel_rows;
      args.panel_step = kRows * held;
      Tile::pack_a(args, a + task * kPackedPanels * kRows * held);
    });

    const int64_t strips = ceil_div(g_.n, kCols);
    const int64_t group = std::clamp<int64_t>(ceil_div(strips, thread_count()), 1, kGroup);
    const int64_t groups = ceil_div(strips, group);
    const int64_t row_tasks =
        std::clamp<int64_t>(thread_count() / groups, 1, ceil_div(block.rows, kFewestRows));
    const int64_t task_panels = ceil_div(panels, row_tasks);
    spread(groups * row_tasks, [&](int64_t task) {
      static thread_local Workspace<Word> b_space;
      Word* b = b_space.get(static_cast<size_t>(group * kCols * held)).data();
      const int64_t first = task / row_tasks * group, end = std::min(strips, first + group);
      PackArgs args = lines_of(g_.b, !g_.transpose_b, g_.ldb, first * kCols, block);
      args.lines = std::min((end - first) * kCols, g_.n - first * kCols);
      args.width = kCols;
      args.panel_step = kCols * held;
      Tile::pack_b(args, b);
      const int64_t p0 = task % row_tasks * task_panels, p1 = std::min(panels, p0 + task_panels);
      for (int64_t p = p0; p < p1; ++p) {
        for (int64_t s = first; s < end; ++s) {
          const int64_t row = block.row + p * panel_rows, col = s * kCols;
          const int64_t rows = std::min(panel_rows, block.row + block.rows - row);
          Tile::run({.words = words,
                     .a = a + p * kRows * held,
                     .b = b + (s - first) * kCols * held,
                     .rows = static_cast<int>(rows),
                     .cols = static_cast<int>(std::min(kCols, g_.n - col)),
                     .c = g_.c + row * g_.ldc + col,
                     .ldc = g_.ldc,
                     .load_c = block.k > 0 || g_.start_from_c,
                     .events = g_.events != nullptr ? g_.events + row * g_.n + col : nullptr,
                     .lde = g_.n});
        }
      }
    });
  }

  const GemmArgs<float>& g_;
  bool serial_;
  int64_t block_m_, block_k_;
};

}  // namespace lockstep
