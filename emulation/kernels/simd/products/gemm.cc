// Blocking and threads of the vector gemm; its packed operands are in gemm_operand-inl.h, its
// register tiles in gemm_tile-inl.h (FP32 and FP64 chains), gemm_narrow-inl.h (narrower chains),
// gemm_blocks-inl.h (tensor cores), gemm_units-inl.h and gemm_instructions-inl.h. A kept B is
// packed as a whole by the first product, its blocks one after the other; the products after it
// read them.
#include "emulation/kernels/simd/products/gemm.h"

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/rounded_gemm.h"
#include "emulation/kernels/scalar/products/gemm.h"
#include "emulation/kernels/simd/products/gemm_plan.h"
#include "emulation/kernels/simd/products/rounded_operand.h"
#include "emulation/kernels/simd/rounding/quantize.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/products/gemm.cc"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>
#include "emulation/kernels/simd/products/gemm_blocks-inl.h"
#include "emulation/kernels/simd/products/gemm_instructions-inl.h"
#include "emulation/kernels/simd/products/gemm_narrow-inl.h"
#include "emulation/kernels/simd/products/gemm_operand-inl.h"
#include "emulation/kernels/simd/products/gemm_pack-inl.h"
#include "emulation/kernels/simd/products/gemm_tile-inl.h"
#include "emulation/kernels/simd/products/gemm_units-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

// All of B in panels, and the facts about them.
template <typename T>
struct PackedB {
  Workspace<T> panels;
  Workspace<PanelFacts> facts;
  bool is_complete = false;
  std::array<int64_t, 3> layout = {};  // n, k, columns of a block
};

template <class Tile>
class BlockGemm {
 public:
  using T = typename Tile::Element;
  // `rounded_a`, `rounded_b`: null for an operand that is not rounded.
  BlockGemm(const GemmArgs<T>& g, const Tile& tile, RoundedOperand* rounded_a,
            RoundedOperand* rounded_b)
      : g_(g),
        tile_(tile),
        serial_(g.m * g.n * g.k <= kSerialWork),
        // With one panel of rows, each strip of B is used once: packing it would cost more than it
        // saves.
        direct_(!Tile::kWantsFacts && !g.transpose_b && g.m <= kRows && rounded_b == nullptr &&
                g.kept_b == nullptr),
        block_m_(block_size(g.m, most_lines(kBlockM, kRows), kRows)),
        narrow_(!direct_ && !g.transpose_b && g.m <= kFewRows && g.n > kBlockN),
        block_n_(block_size(g.n, most_lines(narrow_ ? kNarrowBlockN : kBlockN, kCols), kCols)),
        block_k_(block_size(g.k, Tile::kWholeDepth ? g.k : kBlockK, kDepthStep)),
        panel_rows_(ceil_div(std::min(block_m_, g.m), ceil_div(std::min(block_m_, g.m), kRows))),
        a_(g.a, g.lda, g.transpose_a, rounded_a),
        b_(g.b, g.ldb, !g.transpose_b, rounded_b),
        rounded_b_(rounded_b) {}

  void run() {
    if (g_.kept_b == nullptr) return run_all_columns();
    if (g_.kept_b->packed == nullptr) g_.kept_b->packed = std::make_shared<PackedB<T>>();
    kept_b_ = static_cast<PackedB<T>*>(g_.kept_b->packed.get());
    const std::array layout = {g_.n, g_.k, block_n_};
    if (!kept_b_->is_complete) kept_b_->layout = layout;
    if (kept_b_->layout != layout) throw std::logic_error("gemm: kept_b is of another product");
    // Room for all, before threads ask for their parts.
    kept_b_->panels.get(PackedOperand<T, kCols>::size(g_.n, kCols, g_.k));
    kept_b_->facts.get(static_cast<size_t>(facts_in_b()));
    run_all_columns();
    kept_b_->is_complete = true;
  }

 private:
  void run_all_columns() {
    if (!narrow_) return run_columns(0, g_.n);
    // Measures all of B first: short pieces of rows would share most of their blocks.
    if (rounded_b_ != nullptr) rounded_b_->measure_ahead();
    const int64_t columns = kBlockN / block_n_ * block_n_;
    parallel_for(ceil_div(g_.n, columns), [&](int64_t task) {
      BlockGemm part(*this);
      part.run_columns(task * columns, std::min(g_.n, (task + 1) * columns));
    });
  }

  void run_columns(int64_t begin, int64_t end) {
    static thread_local Scratch scratch;
    const bool keeps_a = block_k_ >= g_.k && block_m_ >= g_.m;
    for (int64_t j = begin; j < end; j += block_n_) {
      const int64_t n = std::min(block_n_, end - j);
      for (int64_t k = 0; k < g_.k; k += block_k_) {
        const int64_t depth = std::min(block_k_, g_.k - k);
        direct_strips_ = direct_ ? n / kCols : 0;
        const int64_t in_place = direct_strips_ * kCols;
        b_.select(room_for_b(scratch, j, n - in_place, k, depth), j + in_place, n - in_place, kCols,
                  k, depth, true);
        for (int64_t i = 0; i < g_.m; i += block_m_) {
          const bool a_is_new = !keeps_a || j == begin;
          const bool b_is_new = i == 0 && (kept_b_ == nullptr || !kept_b_->is_complete);
          const int64_t rows = std::min(block_m_, g_.m - i);
          T* room_for_a = scratch.a.get(a_.size(rows, panel_rows_, depth)).data();
          a_.select(room_for_a, i, rows, panel_rows_, k, depth, j == 0);
          if constexpr (Tile::kWantsFacts) {
            a_facts_ = scratch.a_facts.get(static_cast<size_t>(a_.panels())).data();
            b_facts_ = room_for_b_facts(scratch, j, n, k);
          }
          pack(a_is_new, b_is_new);
          multiply({.row = i,
                    .col = j,
                    .k = k,
                    .depth = depth,
                    .strips = ceil_div(n, kCols),
                    .next_b = i + block_m_ >= g_.m ? next_b(j, k, n, depth) : nullptr});
        }
      }
    }
  }

  static constexpr int64_t kRows = Tile::kRows, kCols = Tile::kCols;
  struct Scratch {
    Workspace<T> a, b;
    Workspace<PanelFacts> a_facts, b_facts;
  };
  struct Block {
    int64_t row, col, k, depth, strips;
    const T* next_b;  // of the block of B after this one, or null
  };

  // Lines of a block of A or B: a block with all of k has as many as the workspace holds.
  int64_t most_lines(int64_t limit, int64_t step) const {
    return Tile::kWholeDepth ? std::clamp(kWholeDepthElements / g_.k, step, limit) : limit;
  }

  // Where the panels of a block of B go, and the facts about them. A kept B has for every block of
  // columns, all of them whole strips, its blocks of k.
  int64_t kept_facts_at(int64_t col, int64_t cols, int64_t k) const {
    return col / kCols * ceil_div(g_.k, block_k_) + ceil_div(cols, kCols) * (k / block_k_);
  }
  PanelFacts* room_for_b_facts(Scratch& scratch, int64_t col, int64_t cols, int64_t k) const {
    if (kept_b_ == nullptr) {
      return scratch.b_facts.get(static_cast<size_t>(ceil_div(cols, kCols))).data();
    }
    return kept_b_->facts.get(static_cast<size_t>(facts_in_b())).data() +
           kept_facts_at(col, cols, k);
  }
  int64_t facts_in_b() const { return ceil_div(g_.n, kCols) * ceil_div(g_.k, block_k_); }
  T* room_for_b(Scratch& scratch, int64_t col, int64_t cols, int64_t k, int64_t depth) const {
    using B = PackedOperand<T, kCols>;
    if (kept_b_ == nullptr) return scratch.b.get(B::size(cols, kCols, depth)).data();
    const size_t all = B::size(g_.n, kCols, g_.k);
    return kept_b_->panels.get(all).data() + B::size(col, kCols, g_.k) + B::size(cols, kCols, k);
  }

  // B's next block is fetched while this one is multiplied, if it has the same size.
  const T* next_b(int64_t col, int64_t k, int64_t n, int64_t depth) const {
    if (g_.transpose_b || direct_ || kept_b_ != nullptr) return nullptr;
    if (k + 2 * depth <= g_.k) return g_.b + (k + depth) * g_.ldb + col;
    if (k + depth == g_.k && col + 2 * n <= g_.n) return g_.b + col + n;
    return nullptr;
  }

  // Gives tile number `index` its share: as many rows of a piece of columns as it has time to
  // fetch.
  void fetch_ahead(const Block& block, int64_t index, TileArgs<T>& t) const {
    t.ahead = nullptr;
    if (block.next_b == nullptr) return;
    constexpr int64_t kLine = kCacheLineBytes / static_cast<int64_t>(sizeof(T));
    const int64_t lines = ceil_div(std::min(block_n_, g_.n), kLine);
    const int64_t pieces = ceil_div(lines, kAheadRun);
    t.ahead_run = ceil_div(lines, pieces);
    t.ahead_step = g_.ldb;
    const int64_t rows = ceil_div(block.depth, t.ahead_run), row = index / pieces * rows;
    if (row + rows > block.depth) return;
    t.ahead = block.next_b + row * g_.ldb + index % pieces * t.ahead_run * kLine;
  }

  template <typename Body>
  void spread(int64_t count, Body body) const {
    if (serial_ || count == 1) {
      for (int64_t i = 0; i < count; ++i) body(i);
    } else {
      parallel_for(count, body);
    }
  }

  void pack(bool a_is_new, bool b_is_new) {
    const int64_t a_tasks = a_is_new ? a_.tasks() : 0;
    spread(a_tasks + (b_is_new ? b_.tasks() : 0), [&](int64_t task) {
      if (task < a_tasks) {
        a_.pack(task);
      } else {
        b_.pack(task - a_tasks);
      }
    });
    if constexpr (Tile::kWantsFacts) {
      const int64_t panels = a_is_new ? a_.panels() : 0, strips = b_.panels(), depth = a_.depth();
      spread(panels + (b_is_new ? strips : 0), [&](int64_t i) {
        if (i < panels) {
          a_facts_[i] = facts_of(a_.panel(i), kRows * depth);
        } else {
          b_facts_[i - panels] = facts_of(b_.panel(i - panels), kCols * depth);
        }
      });
    }
  }

  void multiply(const Block& block) const {
    const int64_t panels = a_.panels(), strips = block.strips;
    const int64_t strip_bytes = kCols * block.depth * static_cast<int64_t>(sizeof(T));
    const int64_t groups = ceil_div(strips, std::max<int64_t>(1, kGroupBytes / strip_bytes));
    const int64_t group = ceil_div(strips, groups);
    const int64_t panel_tasks = ceil_div(panels, kTaskPanels);
    const int64_t task_panels = ceil_div(panels, panel_tasks);
    spread(groups * panel_tasks, [&](int64_t task) {
      const int64_t first_panel = task % panel_tasks * task_panels;
      const int64_t first_strip = task / panel_tasks * group;
      for (int64_t p = first_panel; p < std::min(panels, first_panel + task_panels); ++p) {
        for (int64_t s = first_strip; s < std::min(strips, first_strip + group); ++s) {
          multiply_tile(block, p, s);
        }
      }
    });
  }

  void multiply_tile(const Block& block, int64_t panel, int64_t strip) const {
    const int64_t row = block.row + panel * panel_rows_, col = block.col + strip * kCols;
    const bool in_place = strip < direct_strips_;
    TileArgs<T> t;
    t.k = block.depth;
    t.a = a_.panel(panel);
    t.b = in_place ? g_.b + block.k * g_.ldb + col : b_.panel(strip - direct_strips_);
    t.ldb = in_place ? g_.ldb : kCols;
    t.rows = static_cast<int>(std::min(panel_rows_, std::min(block.row + block_m_, g_.m) - row));
    t.cols = static_cast<int>(std::min(kCols, g_.n - col));
    t.c = g_.c + row * g_.ldc + col;
    t.ldc = g_.ldc;
    t.load_c = block.k > 0 || g_.start_from_c;
    t.events = g_.events != nullptr ? g_.events + row * g_.n + col : nullptr;
    t.lde = g_.n;
    t.a_facts = a_facts_ + panel;
    t.b_facts = b_facts_ + strip;
    t.next_c = strip + 1 < block.strips ? t.c + kCols : nullptr;
    fetch_ahead(block, panel * block.strips + strip, t);
    tile_(t);
  }

  const GemmArgs<T>& g_;
  const Tile& tile_;
  const bool serial_, direct_;
  const bool narrow_;  // blocks of few columns
  const int64_t block_m_, block_n_, block_k_;
  const int64_t panel_rows_;  // equal panels: a tile of one or two rows would wait for its sums
  PackedOperand<T, kRows> a_;
  PackedOperand<T, kCols> b_;
  RoundedOperand* rounded_b_;
  PackedB<T>* kept_b_ = nullptr;
  PanelFacts *a_facts_ = nullptr, *b_facts_ = nullptr;
  int64_t direct_strips_ = 0;  // of the current block, read without packing
};

template <class Tile>
void run_blocks(const GemmArgs<typename Tile::Element>& g, const Tile& tile,
                RoundedOperand* rounded_a = nullptr, RoundedOperand* rounded_b = nullptr) {
  BlockGemm<Tile>(g, tile, rounded_a, rounded_b).run();
}

void gemm(const GemmArgs<double>& g) {
  const bool fused = g.accumulator->kind == AccumulatorKind::kFusedChain;
  if (!fused || !g.accumulator->format->is_fp64() || g.events != nullptr || g.k == 0) {
    return scalar_gemm(g);
  }
  run_blocks(g, FusedTile<double>());
}

// Float arrays, chain in double: whole arrays are converted to double, so that no block of k
// rounds.
void gemm_in_double(const GemmArgs<float>& g) {
  const auto widen = [](const float* x, int64_t rows, int64_t cols, int64_t ld) {
    std::vector<double> wide(static_cast<size_t>(rows * cols));
    for (int64_t i = 0; i < rows * cols; ++i) {
      wide[static_cast<size_t>(i)] = x[i / cols * ld + i % cols];
    }
    return wide;
  };
  const auto a = g.transpose_a ? widen(g.a, g.k, g.m, g.lda) : widen(g.a, g.m, g.k, g.lda);
  const auto b = g.transpose_b ? widen(g.b, g.n, g.k, g.ldb) : widen(g.b, g.k, g.n, g.ldb);
  std::vector<double> c(static_cast<size_t>(g.m * g.n));
  if (g.start_from_c) c = widen(g.c, g.m, g.n, g.ldc);
  GemmArgs<double> wide{.transpose_a = g.transpose_a,
                        .transpose_b = g.transpose_b,
                        .m = g.m,
                        .n = g.n,
                        .k = g.k,
                        .a = a.data(),
                        .lda = g.transpose_a ? g.m : g.k,
                        .b = b.data(),
                        .ldb = g.transpose_b ? g.k : g.n,
                        .c = c.data(),
                        .ldc = g.n,
                        .start_from_c = g.start_from_c,
                        .accumulator = g.accumulator,
                        .events = g.events};
  gemm(wide);
  for (int64_t i = 0; i < g.m * g.n; ++i) {
    g.c[i / g.n * g.ldc + i % g.n] = static_cast<float>(c[static_cast<size_t>(i)]);
  }
}

// Calls run(tile) with the register tile of this product; false if there is none.
template <class Run>
bool with_tile(const GemmArgs<float>& g, Run run) {
  const Format& format = *g.accumulator->format;
  if (g.k == 0) return false;
  if (BlockRules::takes(g)) {
    const BlockRules rules(g);
    run(BlockTile(rules));
    return true;
  }
  const AccumulatorKind kind = g.accumulator->kind;
  if (g.events == nullptr) {
    if (kind == AccumulatorKind::kBf16Pairs) return run(UnitTile<Bf16PairsUnit>()), true;
    if (kind == AccumulatorKind::kAmxTile) return run(UnitTile<AmxUnit>()), true;
    if (kind == AccumulatorKind::kArmPairs) {
      return run(CalmUnitTile<ArmPairsUnit, CalmArmPairsUnit>()), true;
    }
    if (kind == AccumulatorKind::kArmPairsFused) {
      return run(CalmUnitTile<ArmPairsFusedUnit, CalmArmPairsFusedUnit>()), true;
    }
    if (kind == AccumulatorKind::kKahan) return run(UnitTile<KahanUnit>()), true;
    if (kind == AccumulatorKind::kPairwise) return run(UnitTile<PairwiseUnit>()), true;
    if (kind == AccumulatorKind::kUnfusedChain && format.is_fp32()) {
      return run(UnitTile<UnfusedUnit>()), true;
    }
    if (kind == AccumulatorKind::kFusedChain && format.is_fp32()) {
      return run(FusedTile<float>()), true;
    }
  }
  return run_narrow(g, run);
}

void gemm(const GemmArgs<float>& g) {
  if (with_tile(g, [&](const auto& tile) { run_blocks(g, tile); })) return;
  const bool in_double = g.accumulator->kind == AccumulatorKind::kFusedChain &&
                         g.accumulator->format->is_fp64() && g.k > 0;
  in_double ? gemm_in_double(g) : scalar_gemm(g);
}

constexpr auto kQuantize = HWY_TARGET == HWY_AVX2 ? avx2_quantize : avx512_quantize;
constexpr auto kPieceQuantizer =
    HWY_TARGET == HWY_AVX2 ? avx2_piece_quantizer : avx512_piece_quantizer;

void rounded_gemm(const RoundedGemmArgs<float>& args) {
  const GemmArgs<float>& g = args.product;
  // Null: not rounded, or not rounded by vectors.
  const auto operand = [](const float* x, int64_t count, const GemmRounding& how) {
    if (how.spec.format == nullptr) return std::unique_ptr<RoundedOperand>();
    auto quantizer = kPieceQuantizer(x, how.spec);
    if (quantizer == nullptr) return std::unique_ptr<RoundedOperand>();
    return std::make_unique<RoundedOperand>(x, count, how, std::move(quantizer));
  };
  const auto a = operand(g.a, g.m * g.k, args.a), b = operand(g.b, g.k * g.n, args.b);
  const bool in_vectors = (a != nullptr || args.a.spec.format == nullptr) &&
                          (b != nullptr || args.b.spec.format == nullptr);
  if (!in_vectors ||
      !with_tile(g, [&](const auto& tile) { run_blocks(g, tile, a.get(), b.get()); })) {
    return rounded_gemm_in_passes<float>(args, gemm, kQuantize);
  }
  if (a != nullptr) a->finish();
  if (b != nullptr) b->finish();
  if (args.c.spec.format == nullptr) return;
  kQuantize(g.c, g.c, g.m * g.n, args.c.spec, args.c.stats);
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {

void avx2_gemm(const GemmArgs<float>& args) {
  N_AVX2::gemm(args);
}
void avx2_gemm(const GemmArgs<double>& args) {
  N_AVX2::gemm(args);
}
void avx512_gemm(const GemmArgs<float>& args) {
  N_AVX3::gemm(args);
}
void avx512_gemm(const GemmArgs<double>& args) {
  N_AVX3::gemm(args);
}

void use_simd_gemm(KernelSet& set, SimdTarget target) {
  if (target == SimdTarget::kAvx2) {
    set.f32.gemm = avx2_gemm;
    set.f64.gemm = avx2_gemm;
    set.f32.rounded_gemm = N_AVX2::rounded_gemm;
  } else {
    set.f32.gemm = avx512_gemm;
    set.f64.gemm = avx512_gemm;
    set.f32.rounded_gemm = N_AVX3::rounded_gemm;
  }
}

}  // namespace lockstep
#endif  // HWY_ONCE
