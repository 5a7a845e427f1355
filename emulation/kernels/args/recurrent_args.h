// The arguments of whole stacks of LSTM or GRU layers, forward and backward: the order of products,
// cell steps (scalar/products/recurrent.h) and roundings.
//
// The input products of all time steps are one product; the recurrent product is one per step. h
// and c are rounded at every step, and so are the gates' gradients in the backward pass. A
// projected h (LSTM with proj_size) is the rounded product of W_hr with the rounded o tanh(c). A
// row of recurrent_rounding.h lists all other roundings.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/kernels/args/recurrent_rounding.h"
#include "emulation/kernels/inner_math.h"

namespace lockstep {

// Direction d of layer l is cell l D + d.
struct RecurrentExtents {
  bool is_lstm, has_bias, batch_first, projects;
  int64_t layers, directions, gates;  // gates: 4 or 3
  int64_t time, batch, in;
  int64_t hidden, state;  // of a cell's arithmetic (H), of its output (P): equal unless it projects
  double dropout;         // between layers; 0: none
  // x is not a contiguous (T,N,C): ATen's cells add the first layer's b_ih to a rounded product.
  bool separate_bias = false;

  int64_t cells() const { return layers * directions; }
  int64_t rows() const { return time * batch; }
  int64_t width() const { return directions * state; }  // of a layer's output
  int64_t layer_in(int64_t layer) const { return layer == 0 ? in : width(); }
  bool drops() const { return dropout > 0; }
  // Arrays of weights per cell, in this order: w_ih, w_hh, [b_ih, b_hh], [w_hr].
  size_t per_cell() const { return (has_bias ? 4 : 2) + (projects ? 1 : 0); }
  size_t projection() const { return per_cell() - 1; }
};

// Shapes: x (N,T,C), y (N,T,D P), or time first; h0, h_n (LD,N,P); c0, c_n (LD,N,H);
// gates (LD,T,N,4H); cell_states, unprojected (LD,T,N,H); hidden (LD,T,N,P);
// masks, layer_inputs (L-1,T,N,D P): what layers above the first read, after dropout.
template <typename T>
struct RecurrentForward {
  RecurrentExtents extents;
  InnerMath<T> math;  // rounding: as formats.h
  RecurrentCells cells = RecurrentCells::kFused;
  CellFormats formats = {};  // null: as math.rounding
  const T *x = nullptr, *h0 = nullptr, *c0 = nullptr;
  std::vector<const T*> weights;
  const int32_t* masks = nullptr;
  T *y = nullptr, *h_n = nullptr, *c_n = nullptr;
  T *gates = nullptr, *cell_states = nullptr, *hidden = nullptr, *unprojected = nullptr;
  T* layer_inputs = nullptr;
};

// Gradients that do not exist (dy, dh_n, dc_n) are null.
template <typename T>
struct RecurrentBackward {
  RecurrentExtents extents;
  InnerMath<T> math;  // rounding: as formats.h
  RecurrentCells cells = RecurrentCells::kFused;
  CellFormats formats = {};  // null: as math.rounding
  const T *x = nullptr, *h0 = nullptr, *c0 = nullptr;
  std::vector<const T*> weights;
  const int32_t* masks = nullptr;
  const T *gates = nullptr, *cell_states = nullptr, *hidden = nullptr, *unprojected = nullptr;
  const T* layer_inputs = nullptr;
  const T *dy = nullptr, *dh_n = nullptr, *dc_n = nullptr;
  T *dx = nullptr, *dh0 = nullptr, *dc0 = nullptr;
  std::vector<T*> dweights;
};

}  // namespace lockstep
