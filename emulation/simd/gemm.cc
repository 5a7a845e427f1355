// Packing, blocking and threads of the vector gemm; its register tiles are in gemm_tile-inl.h and
// gemm_narrow-inl.h.
#include "emulation/simd/gemm.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "emulation/fast_round.h"
#include "emulation/scalar/gemm.h"
#include "emulation/simd/gemm_plan.h"
#include "emulation/simd/targets.h"
#include "src/core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/simd/gemm.cc"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>
#include "emulation/simd/gemm_narrow-inl.h"
#include "emulation/simd/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

// Copies `width` lines of `length` elements into a panel: line i, element k to out[k * stride + i];
// lines beyond `width` are zero. Line i starts at in + i * line_step, its elements are k_step
// apart.
template <typename T>
void pack_panel(const T* in, int64_t line_step, int64_t k_step, int width, int64_t length,
                int stride, T* HWY_RESTRICT out) {
  if (line_step == 1) {
    for (int64_t k = 0; k < length; ++k, in += k_step, out += stride) {
      for (int i = 0; i < width; ++i) out[i] = in[i];
      for (int i = width; i < stride; ++i) out[i] = T(0);
    }
    return;
  }
  for (int i = 0; i < width; ++i) {
    const T* line = in + i * line_step;
    for (int64_t k = 0; k < length; ++k) out[k * stride + i] = line[k * k_step];
  }
  for (int i = width; i < stride; ++i) {
    for (int64_t k = 0; k < length; ++k) out[k * stride + i] = T(0);
  }
}

// What the values of a panel are like. NaNs become the canonical one on the way, since roundings by
// integer arithmetic would carry a full payload into the sign.
template <typename T>
PanelFacts facts_of(T* panel, int64_t count) {
  PanelFacts facts;
  if constexpr (std::is_same_v<T, float>) {
    const hn::ScalableTag<uint32_t> d;
    const auto lanes_count = static_cast<int64_t>(hn::Lanes(d));
    auto low = hn::Zero(d), largest = hn::Zero(d), smallest = hn::Set(d, ~0u);
    const auto magnitude = hn::Set(d, 0x7fffffffu), one = hn::Set(d, 1u);
    const auto* bits = reinterpret_cast<const uint32_t*>(panel);
    for (int64_t i = 0; i < count; i += lanes_count) {
      const auto mask = hn::FirstN(d, static_cast<size_t>(std::min(lanes_count, count - i)));
      const auto x = hn::And(hn::MaskedLoad(mask, d, bits + i), magnitude);
      low = hn::Or(low, x);
      largest = hn::Max(largest, x);
      smallest = hn::Min(smallest, hn::Sub(x, one));  // zero wraps to the largest number
    }
    alignas(64) uint32_t lanes[3][hn::MaxLanes(d)];
    hn::Store(low, d, lanes[0]);
    hn::Store(largest, d, lanes[1]);
    hn::Store(smallest, d, lanes[2]);
    for (size_t i = 0; i < hn::Lanes(d); ++i) {
      facts.low_bits |= lanes[0][i];
      facts.largest = std::max(facts.largest, lanes[1][i]);
      facts.smallest = std::min(facts.smallest, lanes[2][i]);
    }
    if (facts.smallest != ~0u) ++facts.smallest;
    if (facts.largest > kFloatInfinityBits) {
      for (int64_t i = 0; i < count; ++i) panel[i] = canonical_nan(panel[i]);
    }
  }
  return facts;
}

// One block of C: panels of A (rows) against strips of B (columns), all over one block of k.
template <class Tile>
class BlockGemm {
 public:
  using T = typename Tile::Element;
  BlockGemm(const GemmArgs<T>& g, const Tile& tile) : g_(g), tile_(tile) {}

  void run() {
    const bool serial = g_.m * g_.n * g_.k <= kSerialWork;
    for (int64_t j = 0; j < g_.n; j += kBlockN) {
      for (int64_t k = 0; k < g_.k; k += kBlockK) {
        for (int64_t i = 0; i < g_.m; i += kBlockM) block(i, j, k, serial);
      }
    }
  }

 private:
  static constexpr int64_t kRows = Tile::kRows, kCols = Tile::kCols;
  struct Scratch {
    Workspace<T> a, b;
    Workspace<PanelFacts> a_facts, b_facts;
  };

  template <typename Body>
  static void spread(int64_t count, bool serial, Body body) {
    if (serial || count == 1) {
      for (int64_t i = 0; i < count; ++i) body(i);
    } else {
      parallel_for(count, body);
    }
  }

  void block(int64_t i0, int64_t j0, int64_t k0, bool serial) {
    const int64_t m = std::min(kBlockM, g_.m - i0), n = std::min(kBlockN, g_.n - j0);
    const int64_t depth = std::min(kBlockK, g_.k - k0);
    const int64_t panels = (m + kRows - 1) / kRows, strips = (n + kCols - 1) / kCols;
    // With one panel of rows a strip of B is used once: packing it would cost more than it saves.
    const bool direct = !Tile::kWantsFacts && !g_.transpose_b && g_.m <= kRows;
    static thread_local Scratch scratch;
    T* a = scratch.a.get(static_cast<size_t>(panels * kRows * depth)).data();
    T* b = scratch.b.get(static_cast<size_t>(strips * kCols * depth)).data();
    PanelFacts* a_facts = scratch.a_facts.get(static_cast<size_t>(panels)).data();
    PanelFacts* b_facts = scratch.b_facts.get(static_cast<size_t>(strips)).data();

    const auto pack = [&](int64_t p) {
      const bool is_a = p < panels;
      const int64_t index = is_a ? p : p - panels;
      const int stride = static_cast<int>(is_a ? kRows : kCols);
      const int width =
          static_cast<int>(std::min<int64_t>(stride, (is_a ? m : n) - index * stride));
      T* out = (is_a ? a : b) + index * stride * depth;
      const int64_t line = (is_a ? i0 : j0) + index * stride;
      if (is_a) {
        const int64_t line_step = g_.transpose_a ? 1 : g_.lda;
        const int64_t k_step = g_.transpose_a ? g_.lda : 1;
        pack_panel(g_.a + line * line_step + k0 * k_step, line_step, k_step, width, depth, stride,
                   out);
      } else if (!direct || width < stride) {
        const int64_t line_step = g_.transpose_b ? g_.ldb : 1;
        const int64_t k_step = g_.transpose_b ? 1 : g_.ldb;
        pack_panel(g_.b + line * line_step + k0 * k_step, line_step, k_step, width, depth, stride,
                   out);
      }
      if (Tile::kWantsFacts) {
        (is_a ? a_facts : b_facts)[index] = facts_of(out, stride * depth);
      }
    };
    spread(panels + strips, serial, pack);

    const auto tile = [&](int64_t panel, int64_t strip) {
      TileArgs<T> t;
      const int64_t row = i0 + panel * kRows, col = j0 + strip * kCols;
      t.k = depth;
      t.a = a + panel * kRows * depth;
      t.rows = static_cast<int>(std::min(kRows, g_.m - row));
      t.cols = static_cast<int>(std::min(kCols, g_.n - col));
      const bool in_place = direct && t.cols == kCols;
      t.b = in_place ? g_.b + k0 * g_.ldb + col : b + strip * kCols * depth;
      t.ldb = in_place ? g_.ldb : kCols;
      t.c = g_.c + row * g_.ldc + col;
      t.ldc = g_.ldc;
      t.load_c = k0 > 0 || g_.start_from_c;
      t.events = g_.events != nullptr ? g_.events + row * g_.n + col : nullptr;
      t.lde = g_.n;
      t.a_facts = a_facts + panel;
      t.b_facts = b_facts + strip;
      tile_(t);
    };
    const int64_t task_rows = (panels + kTaskPanels - 1) / kTaskPanels;
    const int64_t task_cols = (strips + kTaskStrips - 1) / kTaskStrips;
    spread(task_rows * task_cols, serial, [&](int64_t task) {
      const int64_t panel0 = task % task_rows * kTaskPanels;
      const int64_t strip0 = task / task_rows * kTaskStrips;
      for (int64_t s = strip0; s < std::min(strips, strip0 + kTaskStrips); ++s) {
        for (int64_t p = panel0; p < std::min(panels, panel0 + kTaskPanels); ++p) tile(p, s);
      }
    });
  }

  const GemmArgs<T>& g_;
  const Tile& tile_;
};

template <class Tile>
void run_blocks(const GemmArgs<typename Tile::Element>& g, const Tile& tile) {
  BlockGemm<Tile>(g, tile).run();
}

void gemm(const GemmArgs<double>& g) {
  if (!g.accumulator->format->is_fp64() || g.events != nullptr || g.k == 0) return scalar_gemm(g);
  run_blocks(g, FusedTile<double>());
}

// Float arrays, chain in double: whole arrays go to double, so that no block of k rounds.
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

void gemm(const GemmArgs<float>& g) {
  const Format& format = *g.accumulator->format;
  if (g.k == 0) return scalar_gemm(g);
  if (format.is_fp64()) return gemm_in_double(g);
  if (format.is_fp32() && g.events == nullptr) return run_blocks(g, FusedTile<float>());
  run_narrow(g, [&](const auto& tile) { run_blocks(g, tile); });
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

}  // namespace lockstep
#endif  // HWY_ONCE
