// One row of the batch through an LSTM or GRU cell, by the formulas of recurrent.h.
// Plain loops, compiled once per instruction set: they are always inlined, so the compiler
// vectorises them for the instruction set of their caller (recurrent_rows.cc,
// simd/products/recurrent.cc). It takes note of __restrict only on parameters. Requires: no array
// of a row overlaps another, but an LSTM's x_gates may be `saved`.
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/scalar/products/recurrent.h"

namespace lockstep::recurrent_rows {

template <typename T>
[[gnu::always_inline]] inline void lstm(const Kernels<T>& kernels, const RecurrentStep<T>& row) {
  const int64_t size = row.hidden;
  T *i = row.saved, *f = i + size, *g = f + size, *o = g + size;
  kernels.add(row.x_gates, row.h_gates, i, kLstmGates * size);
  kernels.unary(Unary::kSigmoid, {}, i, i, 2 * size);
  kernels.unary(Unary::kTanh, {}, g, g, size);
  kernels.unary(Unary::kSigmoid, {}, o, o, size);
  const T* c_prev = row.c_prev;
  T *c = row.c, *h = row.h;
  for (int64_t j = 0; j < size; ++j) c[j] = f[j] * c_prev[j] + i[j] * g[j];
  kernels.unary(Unary::kTanh, {}, c, h, size);
  for (int64_t j = 0; j < size; ++j) h[j] = o[j] * h[j];
}

// From tanh(c) in d_o to all gradients.
template <typename T>
[[gnu::always_inline]] inline void lstm_gradients(int64_t size, const T* saved, const T* dh,
                                                  const T* c_prev, T* __restrict dc_row,
                                                  T* __restrict di, T* __restrict df,
                                                  T* __restrict dg, T* __restrict d_o) {
  const T *i = saved, *f = i + size, *g = f + size, *o = g + size;
  for (int64_t j = 0; j < size; ++j) {
    const T tanh_c = d_o[j];
    const T dc = dc_row[j] + dh[j] * o[j] * (T(1) - tanh_c * tanh_c);
    di[j] = dc * g[j] * (i[j] * (T(1) - i[j]));
    df[j] = dc * c_prev[j] * (f[j] * (T(1) - f[j]));
    dg[j] = dc * i[j] * (T(1) - g[j] * g[j]);
    d_o[j] = dh[j] * tanh_c * (o[j] * (T(1) - o[j]));
    dc_row[j] = dc * f[j];
  }
}

template <typename T>
[[gnu::always_inline]] inline void lstm_backward(const Kernels<T>& kernels,
                                                 const RecurrentStepBackward<T>& row) {
  const int64_t size = row.hidden;
  T *di = row.dx_gates, *df = di + size, *dg = df + size, *d_o = dg + size;
  kernels.unary(Unary::kTanh, {}, row.c, d_o, size);
  lstm_gradients(size, row.saved, row.dh, row.c_prev, row.dc, di, df, dg, d_o);
}

template <typename T>
[[gnu::always_inline]] inline void gru(const Kernels<T>& kernels, const RecurrentStep<T>& row) {
  const int64_t size = row.hidden;
  T *r = row.saved, *z = r + size;
  kernels.add(row.x_gates, row.h_gates, r, 2 * size);
  kernels.unary(Unary::kSigmoid, {}, r, r, 2 * size);
  T *n = z + size, *q = n + size, *h = row.h;
  const T *x_n = row.x_gates + 2 * size, *h_n = row.h_gates + 2 * size, *h_prev = row.h_prev;
  for (int64_t j = 0; j < size; ++j) {
    q[j] = h_n[j];
    n[j] = x_n[j] + r[j] * h_n[j];
  }
  kernels.unary(Unary::kTanh, {}, n, n, size);
  for (int64_t j = 0; j < size; ++j) h[j] = (h_prev[j] - n[j]) * z[j] + n[j];
}

template <typename T>
[[gnu::always_inline]] inline void gru_gradients(int64_t size, const T* saved, const T* dh,
                                                 const T* h_prev, T* __restrict dx_r,
                                                 T* __restrict dx_z, T* __restrict dx_n,
                                                 T* __restrict dh_r, T* __restrict dh_z,
                                                 T* __restrict dq, T* __restrict direct) {
  const T *r = saved, *z = r + size, *n = z + size, *q = n + size;
  for (int64_t j = 0; j < size; ++j) {
    const T dn = dh[j] * (T(1) - z[j]) * (T(1) - n[j] * n[j]);
    dx_r[j] = dh_r[j] = dn * q[j] * (r[j] * (T(1) - r[j]));
    dx_z[j] = dh_z[j] = dh[j] * (h_prev[j] - n[j]) * (z[j] * (T(1) - z[j]));
    dx_n[j] = dn;
    dq[j] = dn * r[j];
    direct[j] = dh[j] * z[j];
  }
}

template <typename T>
[[gnu::always_inline]] inline void gru_backward(const RecurrentStepBackward<T>& row) {
  const int64_t size = row.hidden;
  T *dx = row.dx_gates, *dh_gates = row.dh_gates;
  gru_gradients(size, row.saved, row.dh, row.h_prev, dx, dx + size, dx + 2 * size, dh_gates,
                dh_gates + size, dh_gates + 2 * size, row.dh_direct);
}

}  // namespace lockstep::recurrent_rows

namespace lockstep {

// The definition of a cell's row.
template <typename T>
CellFunctions<T> scalar_cell_functions();

}  // namespace lockstep
