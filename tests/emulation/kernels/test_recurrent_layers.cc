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
#include "emulation/kernels/scalar/products/recurrent.h"
#include "emulation/kernels/scalar/products/recurrent_elementary.h"
#include "emulation/kernels/scalar/products/recurrent_layers.h"
#include "emulation/math/exp_log.h"
#include "tests/emulation/kernels/kernel_test_util.h"

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
      gru_step_backward<float>(kernels, {kBatch, hidden, saved, h_prev.data(), nullptr, nullptr,
                                         dh.data(), nullptr, gates, dh_gates, direct});
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

namespace {

struct LayersCase {
  const char* name;
  bool is_lstm, batch_first;
  int64_t layers, directions, batch, hidden, state;
  double dropout = 0;
  const char *format = "fp32", *accumulator = "fp32_fused";
  RecurrentCells cells = RecurrentCells::kFused;
  Rounding rounding = Rounding::kNearestEven;
};
// Batches of 16 and more are large enough for groups of rows.
const LayersCase kLayersCases[] = {
    {"LSTM", true, true, 2, 1, 16, 20, 20},
    {"LSTM, time first, two directions", true, false, 2, 2, 5, 7, 7},
    {"LSTM, projection, dropout, uneven groups of rows", true, true, 2, 2, 25, 24, 9, 0.25, "bf16"},
    {"LSTM in BF16, stochastic", true, true, 1, 2, 24, 9, 9, 0, "bf16", "fp32_fused",
     RecurrentCells::kFused, Rounding::kStochastic},
    {"LSTM in BF16, plain ops, large batch", true, true, 1, 1, 24, 9, 5, 0, "bf16", "fp32_fused",
     RecurrentCells::kTorchCpu},
    {"GRU, time first, two directions, uneven groups of rows", false, false, 2, 2, 26, 11, 11, 0.25,
     "fp16"},
    {"LSTM, sums of several blocks", true, true, 1, 1, 3, 400, 400},
    {"LSTM, projection, dropout", true, true, 2, 2, 4, 24, 9, 0.25},
    {"LSTM in BF16, tensor cores", true, true, 2, 1, 16, 33, 33, 0, "bf16", "hopper_bf16"},
    {"LSTM in BF16, plain ops", true, true, 2, 2, 3, 17, 5, 0, "bf16", "fp32_fused",
     RecurrentCells::kTorchCpu},
    {"GRU", false, true, 2, 1, 16, 20, 20},
    {"GRU, time first, two directions, dropout", false, false, 2, 2, 5, 7, 7, 0.25},
    {"GRU in FP16", false, true, 2, 1, 16, 33, 33, 0, "fp16"},
    {"GRU in BF16, plain ops", false, true, 2, 2, 3, 17, 17, 0, "bf16", "fp32_fused",
     RecurrentCells::kTorchCpu},
};

// All results of both passes, one after the other.
std::vector<float> both_passes(const KernelSet& set, const LayersCase& of) {
  constexpr int64_t kTime = 4, kIn = 6;
  const Format& format = find_format(of.format);
  const Accumulator& accumulator = find_accumulator(of.accumulator);
  const RecurrentExtents e = {.is_lstm = of.is_lstm,
                              .has_bias = true,
                              .batch_first = of.batch_first,
                              .projects = of.state != of.hidden,
                              .layers = of.layers,
                              .directions = of.directions,
                              .gates = of.is_lstm ? kLstmGates : kGruGates,
                              .time = kTime,
                              .batch = of.batch,
                              .in = kIn,
                              .hidden = of.hidden,
                              .state = of.state,
                              .dropout = of.dropout};
  uint32_t index = 0;
  const auto drawn = [&](int64_t count) {
    return make_data<float>(static_cast<size_t>(count), DataKind::kSmall, format, ++index);
  };
  const auto room = [](int64_t count) { return std::vector<float>(static_cast<size_t>(count)); };
  const int64_t cells = e.cells(), states = cells * of.batch;
  const auto x = drawn(e.rows() * kIn), dy = drawn(e.rows() * e.width());
  const auto h0 = drawn(states * of.state), c0 = drawn(states * of.hidden);
  const auto dh_n = drawn(states * of.state), dc_n = drawn(states * of.hidden);
  std::vector<std::vector<float>> weights, dweights;
  for (int64_t cell = 0; cell < cells; ++cell) {
    const int64_t rows = e.gates * of.hidden;
    std::vector<int64_t> counts = {rows * e.layer_in(cell / of.directions), rows * of.state, rows,
                                   rows};
    if (e.projects) counts.push_back(of.state * of.hidden);
    for (const int64_t count : counts) {
      weights.push_back(drawn(count));
      dweights.push_back(room(count));
    }
  }
  const int64_t between = (of.layers - 1) * e.rows() * e.width();
  std::vector<int32_t> masks(static_cast<size_t>(between));
  for (size_t i = 0; i < masks.size(); ++i) masks[i] = i % 5 != 0;
  auto y = room(e.rows() * e.width()), h_n = room(states * of.state);
  auto c_n = room(states * of.hidden), gates = room(kTime * states * of.hidden * kSavedGates);
  auto cell_states = room(kTime * states * of.hidden), hidden = room(kTime * states * of.state);
  auto unprojected = room(kTime * states * of.hidden), layer_inputs = room(between);
  auto dx = room(e.rows() * kIn), dh0 = h_n, dc0 = c_n;

  RecurrentForward<float> forward;
  RecurrentBackward<float> backward;
  const auto set_common = [&](auto& args) {
    args.extents = e;
    args.math.kernels = &set.f32;
    args.math.gemm_accumulator = &accumulator;
    args.math.reduce_accumulator = &find_accumulator("fp32_fused");
    args.math.rounding = {.format = &format, .rounding = of.rounding};
    args.cells = of.cells;
    args.x = x.data(), args.h0 = h0.data(), args.c0 = c0.data(), args.masks = masks.data();
    for (const auto& weight : weights) args.weights.push_back(weight.data());
    args.gates = gates.data(), args.cell_states = cell_states.data();
    args.hidden = hidden.data(), args.unprojected = unprojected.data();
    args.layer_inputs = layer_inputs.data();
  };
  set_common(forward), set_common(backward);
  forward.y = y.data(), forward.h_n = h_n.data(), forward.c_n = c_n.data();
  set.f32.recurrent_forward(forward);
  backward.dy = dy.data(), backward.dh_n = dh_n.data(), backward.dc_n = dc_n.data();
  backward.dx = dx.data(), backward.dh0 = dh0.data(), backward.dc0 = dc0.data();
  for (auto& dweight : dweights) backward.dweights.push_back(dweight.data());
  set.f32.recurrent_backward(backward);

  std::vector<float> all;
  for (const auto* part : {&y, &h_n, &c_n, &gates, &cell_states, &hidden, &unprojected,
                           &layer_inputs, &dx, &dh0, &dc0}) {
    all.insert(all.end(), part->begin(), part->end());
  }
  for (const auto& part : dweights) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace

TEST_CASE("kernel sets: both passes of recurrent layers have the scalar bits, any threads") {
  for (const LayersCase& of : kLayersCases) {
    const std::vector<float> want = both_passes(scalar_kernels(), of);
    for (const KernelSet* set : available_kernel_sets()) {
      for (const int threads : {1, 2, 3}) {
        const ThreadCountGuard guard(threads);
        CAPTURE(of.name);
        CAPTURE(set->name);
        CAPTURE(threads);
        CHECK(same_bits(both_passes(*set, of), want));
      }
    }
  }
}

}  // namespace lockstep
