// The parts shared by the forward and the backward pass of recurrent layers: the walk over layers,
// directions and steps, its products and its roundings. For recurrent_forward.cc and
// recurrent_backward.cc.
#pragma once

#include <algorithm>
#include <vector>

#include "emulation/kernels/scalar/recurrent_elementary.h"
#include "emulation/kernels/scalar/recurrent_layers.h"
#include "emulation/kernels/scalar/strided_copy.h"

namespace lockstep {

// (A,B,C) -> (B,A,C)
template <typename T>
void turn(const T* x, int64_t a, int64_t b, int64_t c, T* y) {
  strided_copy<T>({{b, c, a * c}, {a, b * c, c}, {c, 1, 1}}, x, y);
}

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
  std::vector<T> time_major(const T* x, int64_t width) const {
    std::vector<T> turned(static_cast<size_t>(e_.rows() * width));
    if (e_.batch_first) {
      turn(x, e_.batch, e_.time, width, turned.data());
    } else {
      std::copy_n(x, turned.size(), turned.data());
    }
    return turned;
  }
  void from_time_major(const std::vector<T>& x, int64_t width, T* y) const {
    if (e_.batch_first) {
      turn(x.data(), e_.time, e_.batch, width, y);
    } else {
      std::copy(x.begin(), x.end(), y);
    }
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
  void product(bool transpose_a, const T* a, bool transpose_b, const T* b, int64_t m, int64_t n,
               int64_t k, T* c) {
    GemmArgs<T> gemm{
        .transpose_a = transpose_a, .transpose_b = transpose_b, .m = m, .n = n, .k = k};
    std::vector<T> a_storage, b_storage;
    gemm.a = a_.math.as_factor(a, m * k, a_storage), gemm.lda = transpose_a ? m : k;
    gemm.b = a_.math.as_factor(b, k * n, b_storage), gemm.ldb = transpose_b ? k : n;
    gemm.c = c, gemm.ldc = n;
    gemm.accumulator = a_.math.gemm_accumulator;
    gemm.a_format = a_.math.a_format, gemm.b_format = a_.math.b_format;
    a_.math.kernels->gemm(gemm);
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
  static CellFormats formats_of(const Args& args) {
    const Format* own = args.math.rounding.format;
    return args.formats.low == nullptr ? CellFormats{own, own, own} : args.formats;
  }
};

}  // namespace lockstep
