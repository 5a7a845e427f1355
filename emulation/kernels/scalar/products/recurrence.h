// The parts shared by the forward and the backward pass of recurrent layers: the walk over layers,
// directions and steps, its products and its roundings. For recurrent_forward.cc and
// recurrent_backward.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "emulation/kernels/scalar/elements/strided_copy.h"
#include "emulation/kernels/scalar/products/recurrent_elementary.h"
#include "emulation/kernels/scalar/products/recurrent_layers.h"
#include "emulation/kernels/workspace.h"
#include "src/core/parallel.h"

namespace lockstep {

// (A,B,C) -> (B,A,C)
template <typename T>
void turn(const T* x, int64_t a, int64_t b, int64_t c, T* y) {
  strided_copy<T>({{b, c, a * c}, {a, b * c, c}, {c, 1, 1}}, x, y);
}

// A weight matrix as the second factor of one product per step: narrowed once, and packed once by
// the kernel sets that pack.
template <typename T>
struct StepFactor {
  const T* values = nullptr;
  std::vector<T> storage = {};
  KeptFactor kept = {};
};

// Rows of the batch.
struct RowRange {
  int64_t first, count;
};

// The walk over layers, directions and steps, and its products.
template <typename T, typename Args>
class Recurrence {
 public:
  explicit Recurrence(const Args& args)
      : a_(args),
        e_(args.extents),
        how_(cell_rounding(args.cells, e_.is_lstm, e_.projects)),
        formats_(formats_of(args)),
        round_{args.math},
        gate_rows_(e_.gates * e_.hidden) {}

 protected:
  const T* time_major(const T* x, int64_t width, Workspace<T>& room) const {
    if (!e_.batch_first) return x;
    T* turned = room_for(room, e_.rows() * width);
    turn(x, e_.batch, e_.time, width, turned);
    return turned;
  }
  void from_time_major(const T* x, int64_t width, T* y) const {
    if (e_.batch_first) {
      turn(x, e_.time, e_.batch, width, y);
    } else {
      std::copy_n(x, e_.rows() * width, y);
    }
  }
  // Calls body(walk, rows) until all rows of the batch have taken all steps of a direction. Rows
  // meet only in the sums over steps, so several groups may walk at the same time, each in an
  // object of its own, instead of sharing the loops of every step: those are short. What a row
  // computes does not depend on its group. (Stochastic rounding is keyed by the place in the whole
  // array.)
  template <typename Walk, typename Body>
  void walk_rows(Walk& walk, Body body) const {
    constexpr int64_t kFewestRows = 8;  // fewer would read the weights too often
    const int64_t threads = thread_count();
    const int64_t most = std::min(e_.batch / kFewestRows, 2 * threads);
    const int64_t groups = most - most % threads;
    const bool is_random = a_.math.rounding.rounding == Rounding::kStochastic;
    if (threads == 1 || groups == 0 || is_random || a_.math.on_device) {
      return body(walk, RowRange{0, e_.batch});
    }
    parallel_for(groups, [&](int64_t i) {
      Walk own(a_);
      const int64_t first = i * e_.batch / groups;
      body(own, RowRange{first, (i + 1) * e_.batch / groups - first});
    });
  }
  // Whether the thread keeps the memory of a pass for its next one, whose pages are there then.
  bool keeps_rooms() const {
    constexpr int64_t kMostBytes = int64_t{32} << 20;
    const int64_t elements = e_.rows() * std::max(gate_rows_, std::max(e_.in, e_.width()));
    return elements * static_cast<int64_t>(sizeof(T)) <= kMostBytes;
  }
  static T* room_for(Workspace<T>& room, int64_t count) {
    return room.get(static_cast<size_t>(count)).data();
  }
  void round(std::vector<T>& x, const Format* format) {
    round_(x.data(), static_cast<int64_t>(x.size()), format);
  }
  // A hidden state (or its sequence) as a factor of a product.
  const T* low(const T* h, int64_t count, std::vector<T>& storage) {
    if (formats_.h == formats_.low) return h;
    storage.assign(h, h + count);
    round(storage, formats_.low);
    return storage.data();
  }

  // C (m,n) = op(a) op(b); b row-major as stored. Factors made inside are narrowed where needed.
  void multiply(bool transpose_a, const T* a, bool transpose_b, const T* b, int64_t m, int64_t n,
                int64_t k, T* c) {
    multiply(transpose_a, a, transpose_b, a_.math.as_factor(b, k * n, b_storage_), m, n, k, c,
             nullptr);
  }
  // C (m,n) = a op(b), one of many products with b.
  void multiply(const T* a, bool transpose_b, StepFactor<T>& b, int64_t m, int64_t n, int64_t k,
                T* c) {
    multiply(false, a, transpose_b, b.values, m, n, k, c, &b.kept);
  }
  // Weight k of a cell, `rows` gates or states times `columns`.
  StepFactor<T> step_factor(int64_t cell, size_t k, int64_t rows, int64_t columns) const {
    StepFactor<T> factor;
    factor.values = a_.math.as_factor(weight(cell, k), rows * columns, factor.storage);
    return factor;
  }
  const T* weight(int64_t cell, size_t k) const { return a_.weights[at(cell, k)]; }
  size_t at(int64_t cell, size_t k) const { return static_cast<size_t>(cell) * e_.per_cell() + k; }
  // Step s of a direction is time step s, or counts from the end.
  int64_t time_of(int64_t direction, int64_t s) const {
    return direction == 0 ? s : e_.time - 1 - s;
  }
  int64_t between() const { return e_.rows() * e_.width(); }  // elements between two layers
  int64_t state_size() const { return e_.batch * e_.state; }
  int64_t cell_size() const { return e_.batch * e_.hidden; }

  const Args& a_;
  const RecurrentExtents& e_;
  const CellRounding& how_;
  const CellFormats formats_;
  PartRounder<T> round_;
  const int64_t gate_rows_;  // gates * H

 private:
  void multiply(bool transpose_a, const T* a, bool transpose_b, const T* b, int64_t m, int64_t n,
                int64_t k, T* c, KeptFactor* kept_b) {
    GemmArgs<T> gemm{
        .transpose_a = transpose_a, .transpose_b = transpose_b, .m = m, .n = n, .k = k};
    gemm.a = a_.math.as_factor(a, m * k, a_storage_), gemm.lda = transpose_a ? m : k;
    gemm.b = b, gemm.ldb = transpose_b ? k : n;
    gemm.c = c, gemm.ldc = n;
    gemm.accumulator = a_.math.gemm_accumulator;
    gemm.a_format = a_.math.a_format, gemm.b_format = a_.math.b_format;
    gemm.kept_b = kept_b;
    a_.math.kernels->gemm(gemm);
  }
  static CellFormats formats_of(const Args& args) {
    const Format* own = args.math.rounding.format;
    return args.formats.low == nullptr ? CellFormats{own, own, own} : args.formats;
  }

  std::vector<T> a_storage_, b_storage_;
};

}  // namespace lockstep
