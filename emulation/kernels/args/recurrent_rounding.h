// Where the implementations of lstm and gru round between their parts.
// One row per implementation, found by comparing PyTorch 2.13's kernels in BF16 part by part
// (tests/integration/compare/test_torch_bf16_recurrent.py). CellFormats names the formats; a lane's
// policy decides whether it has them.
#pragma once

#include <string_view>

#include "emulation/format/format.h"

namespace lockstep {

// The implementation whose cells a lane models; a policy's [recurrent] cells.
enum class RecurrentCells : uint8_t {
  kFused,     // one kernel per step, as on GPUs
  kTorchCpu,  // PyTorch on a CPU: oneDNN's kernel for an LSTM, ATen's plain ops for everything else
};

// The formats of x, the weights and everything made from them (low), of the hidden state (h) and of
// the cell state (c). Requires: h and c contain low.
struct CellFormats {
  const Format *low = nullptr, *h = nullptr, *c = nullptr;
};

// Common to all: h, c and the gates' gradients are rounded. The gates that the backward pass reads
// are outputs of the op; lowering chooses their format.
struct CellRounding {
  std::string_view name, source;
  // Every operation between the products is a separate op and rounds its result. The products,
  // biases included, round theirs. A step's gradients of w_hh, b_hh and w_hr are rounded and added
  // up from the last step to the first; the sums for w_hh and b_hh are rounded.
  bool elementary = false;
  bool one_bias = false;         // an LSTM's two biases are added first and the sum is rounded
  bool state_gradients = false;  // dh and dc are rounded at every step
};

inline constexpr CellRounding kCellRoundings[] = {
    {.name = "fused",
     .source = "model: nothing is published about cuDNN's inside",
     .one_bias = true,
     .state_gradients = true},
    {.name = "onednn",
     .source = "oneDNN 3.12, brgemm:avx512_core_bf16, through mkldnn_rnn_layer",
     .one_bias = true},
    {.name = "aten",
     .source = "PyTorch 2.13, aten/src/ATen/native/RNN.cpp, LSTMCell and GRUCell",
     .elementary = true,
     .state_gradients = true},
};

// oneDNN's kernel has no projection, and PyTorch does not use it for GRUs.
constexpr const CellRounding& cell_rounding(RecurrentCells cells, bool is_lstm, bool projects) {
  if (cells == RecurrentCells::kFused) return kCellRoundings[0];
  return kCellRoundings[is_lstm && !projects ? 1 : 2];
}

}  // namespace lockstep
