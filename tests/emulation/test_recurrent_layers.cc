// Which values does a recurrent layer round inside itself in low precision?
#include <doctest/doctest.h>

#include <vector>

#include "emulation/format.h"
#include "emulation/scalar/recurrent_layers.h"

namespace lockstep {
namespace {

// Gates that a step of one LSTM cell saves, all weights zero and every bias the same two numbers.
std::vector<float> gates_of(const Format& format, float b_ih, float b_hh) {
  const float x = 0, h0 = 0, c0 = 0;
  const std::vector<float> weight(4, 0.0f), input_bias(4, b_ih), hidden_bias(4, b_hh);
  float y = 0, h = 0, c = 0, cell_state = 0, hidden = 0;
  std::vector<float> gates(4);
  const Accumulator& accumulator = find_accumulator("fp32_fused");
  RecurrentForward<float> args;
  args.extents = {.is_lstm = true,
                  .has_bias = true,
                  .batch_first = false,
                  .projects = false,
                  .layers = 1,
                  .directions = 1,
                  .gates = 4,
                  .time = 1,
                  .batch = 1,
                  .in = 1,
                  .hidden = 1,
                  .state = 1,
                  .dropout = 0};
  args.math.kernels = &active_kernels().of<float>();
  args.math.gemm_accumulator = args.math.reduce_accumulator = &accumulator;
  args.math.rounding.format = &format;
  args.x = &x, args.h0 = &h0, args.c0 = &c0;
  args.weights = {weight.data(), weight.data(), input_bias.data(), hidden_bias.data()};
  args.y = &y, args.h_n = &h, args.c_n = &c;
  args.gates = gates.data(), args.cell_states = &cell_state, args.hidden = &hidden;
  recurrent_forward(args);
  return gates;
}

}  // namespace

TEST_CASE("an lstm's biases become one, rounded, in low precision and stay two in FP32") {
  const float quarter_ulp = 0x1p-9f;  // of BF16 at 1
  const Format &bf16 = find_format("bf16"), &fp32 = find_format("fp32");
  CHECK(gates_of(bf16, 1, quarter_ulp) == gates_of(bf16, 1, 0));
  CHECK(gates_of(bf16, 1, 4 * quarter_ulp) != gates_of(bf16, 1, 0));
  CHECK(gates_of(fp32, 1, quarter_ulp) != gates_of(fp32, 1, 0));
}

}  // namespace lockstep
