// One operand of a product in panels, a block of k at a time, and the facts about its values.
// Included once per instruction set.
#if defined(LOCKSTEP_GEMM_OPERAND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_GEMM_OPERAND_INL_H_
#undef LOCKSTEP_GEMM_OPERAND_INL_H_
#else
#define LOCKSTEP_GEMM_OPERAND_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/simd/products/gemm_pack-inl.h"
#include "emulation/kernels/simd/products/gemm_plan.h"
#include "emulation/kernels/simd/products/rounded_operand.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// Facts about the values of a panel. Also replaces NaNs by the canonical one, since roundings by
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

// Rows of k that are copied into panels together, so that a panel's cache lines are filled at once.
constexpr int64_t kRowsAtOnce = 8;

// One operand in panels of kStride lines (rows of A, columns of B), over one block of k at a time.
template <typename T, int64_t kStride>
class PackedOperand {
 public:
  // `k_is_row`: k counts the stored rows, lines the stored columns; otherwise the reverse.
  // `rounded`: rounds and measures the packed values; null: they are copied.
  PackedOperand(const T* data, int64_t ld, bool k_is_row, RoundedOperand* rounded)
      : data_(data), ld_(ld), k_is_row_(k_is_row), rounded_(rounded) {}

  // Elements of the panels of `lines` lines, `width` each, over `depth` of k.
  static size_t size(int64_t lines, int64_t width, int64_t depth) {
    return static_cast<size_t>(ceil_div(lines, width) * kStride * depth);
  }

  // The panels at `memory` will hold `lines` lines from `line` on, `width` each, over `depth` of k
  // from `k` on; one pack() per task fills them. `is_new`: this part is packed for the first time.
  void select(T* memory, int64_t line, int64_t lines, int64_t width, int64_t k, int64_t depth,
              bool is_new) {
    line_ = line, lines_ = lines, width_ = width, k_ = k, depth_ = depth, is_new_ = is_new;
    panels_ = memory;
    unit_ = k_is_row_ ? kRowsAtOnce : width;
    rows_ = k_is_row_ ? depth : lines, columns_ = k_is_row_ ? lines : depth;
    const int64_t units = ceil_div(kPackTask, std::max<int64_t>(1, unit_ * columns_));
    task_rows_ = std::min(units * unit_, rows_);
  }
  int64_t depth() const { return depth_; }
  int64_t panels() const { return ceil_div(lines_, width_); }
  T* panel(int64_t index) const { return panels_ + index * kStride * depth_; }
  int64_t tasks() const { return lines_ == 0 ? 0 : ceil_div(rows_, task_rows_); }

  void pack(int64_t task) const {
    const int64_t begin = task * task_rows_, end = std::min(rows_, begin + task_rows_);
    if constexpr (std::is_same_v<T, float>) {
      if (rounded_ != nullptr) return pack_rounded(begin, end);
    }
    for (int64_t row = begin; row < end; row += unit_) {
      pack_unit(source(row), ld_, row, std::min(unit_, end - row));
    }
  }

 private:
  const T* source(int64_t row) const {
    return k_is_row_ ? data_ + (k_ + row) * ld_ + line_ : data_ + (line_ + row) * ld_ + k_;
  }

  // Packs stored rows row, row + 1, ..., which are now at `in`.
  void pack_unit(const T* in, int64_t step, int64_t row, int64_t count) const {
    if (k_is_row_) {
      pack_rows<kStride>(in, step, count, lines_, width_, depth_, panels_ + row * kStride);
    } else {
      pack_lines<kStride>(in, step, static_cast<int>(count), depth_, panel(row / width_));
    }
  }

  void pack_rounded(int64_t begin, int64_t end) const {
    static thread_local Workspace<T> memory;
    constexpr int64_t kBefore = kStochasticGroup;
    RoundedOperand::Reader reader(*rounded_, is_new_);
    // Whole stored rows are one piece of the array: a longer piece shares fewer blocks.
    const bool whole_rows = columns_ == ld_;
    const int64_t rows = whole_rows ? end - begin : unit_,
                  step = whole_rows ? ld_ : columns_ + kBefore;
    T* scratch =
        memory.get(static_cast<size_t>(rows * step + RoundedOperand::kMargin)).data() + kBefore;
    for (int64_t row = begin; row < end; row += rows) {
      const int64_t count = std::min(rows, end - row);
      const int64_t first = source(row) - data_;
      const T* in = nullptr;
      int64_t in_step = step;
      if (whole_rows) {
        in = reader.read(first, first + count * ld_, scratch);
      } else {
        for (int64_t i = 0; i < count; ++i) {
          const T* piece =
              reader.read(first + i * ld_, first + i * ld_ + columns_, scratch + i * step);
          if (i == 0) in = piece;
        }
        if (in != scratch) in_step = ld_;  // read where they are
      }
      for (int64_t i = 0; i < count; i += unit_) {
        pack_unit(in + i * in_step, in_step, row + i, std::min(unit_, count - i));
      }
    }
  }

  const T* data_;
  int64_t ld_;
  bool k_is_row_;
  RoundedOperand* rounded_;
  bool is_new_ = true;
  int64_t line_ = 0, lines_ = 0, width_ = kStride, k_ = 0, depth_ = 0;
  // The same as stored: rows x columns, packed in units of `unit_` rows.
  int64_t rows_ = 0, columns_ = 0, unit_ = 1, task_rows_ = 1;
  T* panels_ = nullptr;
};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
