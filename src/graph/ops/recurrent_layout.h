// Where does what stand in an lstm or gru node?
// Operand and output numbers and extents, for the shape rules and the kernels of ops/recurrent*.cc.
#pragma once

#include <vector>

#include "src/graph/op.h"

namespace lockstep {

// Operands:          x, h0, [c0], then per layer and direction w_ih, w_hh, [b_ih, b_hh]
// Outputs:           y, h_n, [c_n], saved gates, [cells], hidden states, [masks, layer inputs]
// Backward operands: the forward operands, saved gates, [cells], hidden states, [masks, layer
//                    inputs], then the gradients that arrive: [dy], [dh_n], [dc_n]
// c and cells: lstm alone; masks and layer inputs: with dropout between layers.
struct RecurrentLayout {
  bool is_lstm, has_bias, batch_first;
  int64_t layers, directions, gates;  // gates: 4 or 3
  double dropout;                     // 0 where it drops nothing
  int64_t time, batch, in, hidden;

  size_t states() const { return is_lstm ? 2 : 1; }  // h or h and c
  size_t per_direction() const { return has_bias ? 4 : 2; }
  size_t first_weight() const { return 1 + states(); }
  size_t weights() const { return static_cast<size_t>(layers * directions) * per_direction(); }
  size_t operands() const { return first_weight() + weights(); }
  // Operand k (0 w_ih, 1 w_hh, 2 b_ih, 3 b_hh) of a layer's direction; `cell` = layer D +
  // direction.
  size_t weight(int64_t cell, size_t k) const {
    return first_weight() + static_cast<size_t>(cell) * per_direction() + k;
  }
  bool drops() const { return dropout > 0; }
  size_t saved_count() const { return 1 + states() + (drops() ? 2 : 0); }
  // Number within the saved values; add 1 + states() for the output, operands() for the operand.
  size_t gates_at() const { return 0; }
  size_t cells_at() const { return 1; }
  size_t hidden_at() const { return states(); }
  size_t masks_at() const { return 1 + states(); }
  size_t inputs_at() const { return 2 + states(); }

  int64_t layer_in(int64_t layer) const { return layer == 0 ? in : directions * hidden; }
  int64_t state_size() const { return batch * hidden; }
};

// Throws: InputError naming node, operand, value and constraint, unless the forward operands fit.
RecurrentLayout recurrent_layout(const Node& node, std::span<const TensorType> inputs);

// The saved values' types, in their order.
std::vector<TensorType> saved_types(const RecurrentLayout& layout);

// x and the weights are factors of products; the states become ones inside the op.
bool is_recurrent_factor(const Node& node, size_t operand);

// Kernels, in recurrent_run.cc.
void run_recurrent(const OpCall& call);
void run_recurrent_backward(const OpCall& call);

}  // namespace lockstep
