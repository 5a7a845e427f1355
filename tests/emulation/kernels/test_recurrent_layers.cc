// The values that a recurrent layer rounds internally in low precision.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/format/rounding.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/scalar/recurrent.h"
#include "emulation/kernels/scalar/recurrent_elementary.h"
#include "emulation/kernels/scalar/recurrent_layers.h"
#include "emulation/math/exp_log.h"

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

TEST_CASE("an lstm's biases become one rounded bias in low precision and remain two in FP32") {
  const float quarter_ulp = 0x1p-9f;  // of BF16 at 1
  const Format &bf16 = find_format("bf16"), &fp32 = find_format("fp32");
  CHECK(gates_of(bf16, 1, quarter_ulp) == gates_of(bf16, 1, 0));
  CHECK(gates_of(bf16, 1, 4 * quarter_ulp) != gates_of(bf16, 1, 0));
  CHECK(gates_of(fp32, 1, quarter_ulp) != gates_of(fp32, 1, 0));
}

TEST_CASE("a GRU of separate ops, by hand: each is rounded, the state is not") {
  // One element; x_gates = (0, 0, 1/2), h_gates = (0, 0, 1/3 in BF16), h_prev = 1/3 in FP32:
  //   r = z = 1/2,  n = BF16(tanh(BF16(1/2 + BF16(1/6)))),  h = (h_prev - n) / 2 + n in FP32
  const Format &bf16 = find_format("bf16"), &fp32 = find_format("fp32");
  const auto low = [&](float x) {
    return static_cast<float>(round_to_format(x, bf16, Rounding::kNearestEven, 0));
  };
  InnerMath<float> math;
  math.kernels = &active_kernels().of<float>();
  math.rounding.format = &fp32;
  PartRounder<float> round{math};
  const std::vector<float> x_gates = {0, 0, 0.5f}, h_gates = {0, 0, low(1 / 3.0f)};
  const float h_prev = 1 / 3.0f;
  std::vector<float> saved(4);
  float h = 0;
  RecurrentStep<float> step{.batch = 1, .hidden = 1};
  step.x_gates = x_gates.data(), step.h_gates = h_gates.data();
  step.h_prev = &h_prev, step.saved = saved.data(), step.h = &h;
  elementary_gru_step(step, {&bf16, &fp32, &fp32}, round);
  const float n = low(lockstep_tanh<float>(low(0.5f + low(low(1 / 3.0f) * 0.5f))));
  CHECK(saved == std::vector<float>{0.5f, 0.5f, n, low(1 / 3.0f)});
  CHECK(h == (h_prev - n) * 0.5f + n);
  CHECK(low(h) != h);
}

TEST_CASE(
    "kernel sets: the cells of LSTM and GRU have the scalar bits, NaN and infinity included") {
  constexpr int64_t kBatch = 3;
  for (const int64_t hidden : {1, 7, 16, 33, 128}) {
    const auto cells = [&](const KernelSet& set) {
      const Kernels<float>& kernels = set.f32;
      const auto size = static_cast<size_t>(kBatch * hidden);
      const auto filled = [](size_t count, float start) {
        std::vector<float> x(count);
        for (size_t i = 0; i < count; ++i) {
          x[i] = start * static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 10;
        }
        x[count / 3] = std::numeric_limits<float>::infinity();
        x[count / 2] = std::numeric_limits<float>::quiet_NaN();
        return x;
      };
      const auto x_gates = filled(4 * size, 1), h_gates = filled(4 * size, -0.7f);
      const auto c_prev = filled(size, 0.3f), h_prev = filled(size, 0.2f);
      const auto dh = filled(size, 0.1f);
      std::vector<float> out(20 * size);
      float *saved = out.data(), *h = saved + 4 * size, *c = h + size, *gates = c + size;
      float *dc = gates + 4 * size, *dh_gates = dc + size, *direct = dh_gates + 4 * size;
      lstm_step(kernels, {kBatch, hidden, x_gates.data(), h_gates.data(), h_prev.data(),
                          c_prev.data(), saved, h, c});
      lstm_step_backward(kernels, {kBatch, hidden, saved, h_prev.data(), c, c_prev.data(),
                                   dh.data(), dc, gates, nullptr, nullptr});
      std::vector<float> of_lstm = out;
      gru_step(kernels, {kBatch, hidden, x_gates.data(), h_gates.data(), h_prev.data(), nullptr,
                         saved, h, nullptr});
      gru_step_backward<float>(kernels, {kBatch, hidden, saved, h_prev.data(), nullptr, nullptr, dh.data(),
                                nullptr, gates, dh_gates, direct});
      of_lstm.insert(of_lstm.end(), out.begin(), out.end());
      return of_lstm;
    };
    const std::vector<float> want = cells(scalar_kernels());
    for (const KernelSet* set : available_kernel_sets()) {
      CAPTURE(set->name);
      CAPTURE(hidden);
      const std::vector<float> got = cells(*set);
      int64_t different = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        different += std::isnan(want[i])
                         ? !std::isnan(got[i])
                         : std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i]);
      }
      CHECK(different == 0);
    }
  }
}

}  // namespace lockstep
