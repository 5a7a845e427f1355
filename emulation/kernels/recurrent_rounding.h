// Where does an implementation of lstm and gru round between its parts?
// One row per implementation, found by trying PyTorch 2.13's own kernels in BF16 part by part
// (tests/integration/compare/test_torch_bf16_recurrent.py). Which formats those are is said by
// CellFormats; that a lane has them at all is up to its policy.
#pragma once

#include <array>
#include <string_view>

#include "emulation/format/format.h"

namespace lockstep {

// Whose cells a lane imitates; a policy's [recurrent] cells.
enum class RecurrentCells : uint8_t {
  kFused,     // one kernel per step, as on GPUs
  kTorchCpu,  // PyTorch on a CPU: oneDNN's kernel for an LSTM, ATen's plain ops for everything else
};

// Of x, the weights and everything made from them (low), of the hidden and of the cell state.
// Requires: h and c contain low.
struct CellFormats {
  const Format *low = nullptr, *h = nullptr, *c = nullptr;
};

// What all have in common: h, c and the gates' gradients are rounded. The gates that the backward
// pass reads are outputs of the op, in a format that lowering chooses.
struct CellRounding {
  std::string_view name, source;
  // Every operation between the products is an op of its own and rounds its result, as do the
  // products, their biases included; a step's gradients of w_hh, b_hh and w_hr are rounded and
  // added up from the last step to the first, those of w_hh and b_hh in rounded sums.
  bool elementary;
  bool one_bias;         // an LSTM's two biases are added first and the sum is rounded
  bool state_gradients;  // dh and dc are rounded at every step
};

inline constexpr std::array<CellRounding, 3> kCellRoundings = {{
    {"fused", "model: nothing is published about cuDNN's inside", false, true, true},
    {"onednn", "oneDNN 3.12, brgemm:avx512_core_bf16, through mkldnn_rnn_layer", false, true,
     false},
    {"aten", "PyTorch 2.13, aten/src/ATen/native/RNN.cpp, LSTMCell and GRUCell", true, false, true},
}};

// oneDNN's kernel knows no projection, and PyTorch asks it for no GRU.
constexpr const CellRounding& cell_rounding(RecurrentCells cells, bool is_lstm, bool projects) {
  if (cells == RecurrentCells::kFused) return kCellRoundings[0];
  return kCellRoundings[is_lstm && !projects ? 1 : 2];
}

}  // namespace lockstep
