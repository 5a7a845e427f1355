// The layout of an lstm or gru node: its extents and the numbers of its operands and outputs, for
// the shape rules and kernel calls of ops/recurrent*.cc.
#pragma once

#include <vector>

#include "emulation/kernels/args/recurrent_args.h"
#include "src/graph/op.h"

namespace lockstep {

// Operands:          x, h0, [c0], then per layer and direction w_ih, w_hh, [b_ih, b_hh], [w_hr]
// Outputs:           y, h_n, [c_n], then the saved values
// Saved:             gates, [cells], hidden states, [unprojected], [masks, layer inputs]
// Backward operands: the forward operands, the saved values, then the gradients that arrive: [dy],
//                    [dh_n], [dc_n]
// c and cells: lstm only; w_hr, unprojected: with proj_size; masks, layer inputs: with dropout
// between layers.
struct RecurrentLayout : RecurrentExtents {
  size_t states() const { return is_lstm ? 2 : 1; }  // h or h and c
  size_t first_weight() const { return 1 + states(); }
  size_t weights() const { return static_cast<size_t>(cells()) * per_cell(); }
  size_t operands() const { return first_weight() + weights(); }
  size_t weight(int64_t cell, size_t k) const {
    return first_weight() + static_cast<size_t>(cell) * per_cell() + k;
  }
  // Numbers within the saved values; add first_saved() for the output, operands() for the operand.
  size_t first_saved() const { return 1 + states(); }
  size_t gates_at() const { return 0; }
  size_t cells_at() const { return 1; }
  size_t hidden_at() const { return states(); }
  size_t unprojected_at() const { return 1 + states(); }
  size_t masks_at() const { return 1 + states() + (projects ? 1 : 0); }
  size_t inputs_at() const { return masks_at() + 1; }
  size_t saved_count() const { return masks_at() + (drops() ? 2 : 0); }
};

// Throws: InputError naming node, operand, value and constraint, unless the forward operands fit.
RecurrentLayout recurrent_layout(const Node& node, std::span<const TensorType> inputs);

// The types of the saved values, in their order.
std::vector<TensorType> saved_types(const RecurrentLayout& layout);

// Whether the operand is a factor of products: x and the weights. States become factors only
// inside.
bool is_recurrent_factor(const Node& node, size_t operand);

// Kernel calls, in recurrent_run.cc.
void run_recurrent(const OpCall& call);
void run_recurrent_backward(const OpCall& call);

}  // namespace lockstep
