// One time step of an LSTM or GRU cell, after the products with the weight matrices.
// The model is a fused cell: everything from the sums of products to the new state is computed in
// T, sigmoids and tanh by the given kernels; the caller rounds only the returned values.
//
// LSTM, gates in torch's order i, f, g, o; x_gates = W_ih x + b_ih, h_gates = W_hh h + b_hh:
//   i, f, o = sigmoid(x_gates + h_gates), g = tanh(x_gates + h_gates)
//   c = f c_prev + i g,  h = o tanh(c)                              saved: i, f, g, o
// GRU, gates in torch's order r, z, n; q is n's part of h_gates, b_hn included:
//   r, z = sigmoid(x_gates + h_gates),  n = tanh(x_gates + r q)
//   h = (h_prev - n) z + n                                          saved: r, z, n, q
#pragma once

#include <cstdint>

namespace lockstep {

template <typename T>
struct Kernels;  // emulation/kernels/kernel_set.h

inline constexpr int64_t kLstmGates = 4, kGruGates = 3, kSavedGates = 4;

// Shapes: h, c (N,H); saved (N,4H); gates (N,GH), G = 4 for LSTM and 3 for GRU. An LSTM's x_gates
// may be `saved`.
template <typename T>
struct RecurrentStep {
  int64_t batch, hidden;
  const T *x_gates = nullptr, *h_gates = nullptr;
  const T *h_prev = nullptr, *c_prev = nullptr;  // c_prev, c: LSTM
  T *saved = nullptr, *h = nullptr, *c = nullptr;
};
template <typename T>
void lstm_step(const Kernels<T>& kernels, const RecurrentStep<T>& step);
template <typename T>
void gru_step(const Kernels<T>& kernels, const RecurrentStep<T>& step);

// dh, dc: the whole gradients of the step's results. The gates' gradients are before sigmoid and
// tanh; dh_direct is the part of h_prev's gradient that bypasses the product with W_hh.
template <typename T>
struct RecurrentStepBackward {
  int64_t batch, hidden;
  const T *saved = nullptr, *h_prev = nullptr;  // h_prev: GRU
  const T *c = nullptr, *c_prev = nullptr;      // LSTM
  const T* dh = nullptr;
  T* dc = nullptr;                             // LSTM: in: of c, out: of c_prev
  T *dx_gates = nullptr, *dh_gates = nullptr;  // dh_gates: GRU; LSTM's are both dx_gates
  T* dh_direct = nullptr;                      // GRU
};
template <typename T>
void lstm_step_backward(const Kernels<T>& kernels, const RecurrentStepBackward<T>& step);
template <typename T>
void gru_step_backward(const Kernels<T>& kernels, const RecurrentStepBackward<T>& step);

}  // namespace lockstep
