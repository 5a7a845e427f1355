#include "tests/analysis/faithful/hand_capture.h"

#include <algorithm>

#include "emulation/format/format.h"
#include "emulation/format/rounding.h"
#include "src/graph/builder.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kN = 4, kI = 3, kO = 2;
constexpr double kLr = 0.1, kMomentum = 0.9, kScale = 1024;

// None of them is a BF16 number.
const std::vector<float> kX = {0.31F, -1.27F, 0.83F,  2.11F,  0.57F, -0.43F,
                               1.73F, 0.19F,  -0.91F, -0.67F, 1.39F, 0.23F};
const std::vector<float> kW = {0.77F, -0.35F, 1.13F, -0.59F, 0.41F, 0.97F};
const std::vector<float> kTarget = {0.5F, -1.1F, 0.3F, 0.7F, -0.2F, 1.3F, 0.9F, -0.6F};
const std::vector<float> kMomentumBefore = {0.11F, -0.07F, 0.05F, 0.02F, -0.13F, 0.17F};

template <typename T, typename From>
Tensor tensor_of(Shape shape, const std::vector<From>& values) {
  return Tensor::from<T>(std::move(shape), std::vector<T>(values.begin(), values.end()));
}

Graph graph() {
  GraphBuilder b("hand");
  const Value x = b.input("x", {{kN, kI}}), target = b.input("target", {{kN, kO}});
  b.buffer(kSeen, {kN, kO});
  const Value y = b.linear("fc", x, kO, /*bias=*/false);
  b.set_loss(b.op("mse_loss", {y, target}, {}, ""));
  Graph graph = b.finish();
  graph.mutations.push_back({kSeen, y});
  return graph;
}

}  // namespace

HandStep hand_step(Hand precision) {
  const auto rounded = [&](double x) {
    if (precision == Hand::kDouble) return x;
    return round_to_format(x, find_format("bf16"), Rounding::kNearestEven);
  };
  HandStep out;
  out.y.resize(kN * kO);
  out.gradient.resize(kO * kI);
  std::vector<double> dy(kN * kO);
  for (size_t n = 0; n < kN; ++n) {
    for (size_t o = 0; o < kO; ++o) {
      double sum = 0;
      for (size_t i = 0; i < kI; ++i) sum += rounded(kX[n * kI + i]) * rounded(kW[o * kI + i]);
      const size_t at = n * kO + o;
      out.y[at] = rounded(sum);
      const double off = out.y[at] - kTarget[at];
      out.loss += off * off / (kN * kO);
      dy[at] = rounded(2 * off / (kN * kO));
    }
  }
  for (size_t o = 0; o < kO; ++o) {
    for (size_t i = 0; i < kI; ++i) {
      double sum = 0;
      for (size_t n = 0; n < kN; ++n) sum += dy[n * kO + o] * rounded(kX[n * kI + i]);
      out.gradient[o * kI + i] = rounded(sum);
    }
  }
  return out;
}

void step_again(Capture& capture) {
  CapturedVerify& verify = capture.verify.at(0);
  const auto gradient = verify.grads32.at(kWeight).as<float>();
  std::vector<double> weight, momentum;
  for (size_t k = 0; k < kW.size(); ++k) {
    momentum.push_back(kMomentum * kMomentumBefore[k] + gradient[k]);
    weight.push_back(kW[k] - kLr * momentum[k]);
  }
  verify.after.values[kWeight] = tensor_of<float>({kO, kI}, weight);
  verify.after.optimizer[kWeight]["momentum_buffer"] = tensor_of<float>({kO, kI}, momentum);
}

Capture hand_capture() {
  const HandStep exact = hand_step(Hand::kDouble), low = hand_step(Hand::kBf16);
  Capture capture;
  capture.v0 = "bit-exact";
  capture.model_class = "Hand";
  capture.graphs = {graph()};
  capture.optimizer = "sgd";
  capture.optimizer_class = "torch.optim.SGD";
  capture.groups = {{kWeight}};
  capture.amp.autocast = true;
  capture.amp.device_type = "cpu";
  capture.amp.dtype = "bf16";
  capture.scaler.enabled = true;
  capture.scaler.spec.kind = "torch-dynamic";
  capture.scaler.spec.init_scale = kScale;
  capture.scaler.spec.growth_interval = 2;
  capture.scaler.start.scale = kScale;

  CapturedStep step;
  step.hyper = {{{"lr", kLr}, {"momentum", kMomentum}}};
  CapturedMicroBatch& micro = step.micro.emplace_back();
  micro.inputs = {{"x", tensor_of<float>({kN, kI}, kX)},
                  {"target", tensor_of<float>({kN, kO}, kTarget)}};
  step.loss = micro.loss = low.loss;
  step.grads[kWeight] = tensor_of<float>({kO, kI}, low.gradient);
  // The scale doubles after two clean steps and is halved by the overflow of the third.
  step.scale_before = step.scale_after = kScale;
  step.growth_tracker_after = 1;
  capture.steps.push_back(step);
  step.growth_tracker_after = 0;
  step.scale_after = 2 * kScale;
  capture.steps.push_back(step);
  step.scale_before = 2 * kScale;
  step.scale_after = kScale;
  step.found_inf = true;
  step.stepped = false;
  capture.steps.push_back(step);

  CapturedVerify& verify = capture.verify.emplace_back();
  verify.before.values = {{kWeight, tensor_of<float>({kO, kI}, kW)},
                          {kSeen, Tensor({kN, kO}, Container::kF32)}};
  verify.before.optimizer[kWeight]["momentum_buffer"] = tensor_of<float>({kO, kI}, kMomentumBefore);
  verify.before.steps[kWeight] = 1;  // as in captures with a momentum buffer
  verify.loss64 = exact.loss;
  verify.loss32 = static_cast<float>(exact.loss);
  verify.grads64[kWeight] = tensor_of<double>({kO, kI}, exact.gradient);
  verify.grads32[kWeight] = tensor_of<float>({kO, kI}, exact.gradient);
  verify.after.values[kSeen] = tensor_of<float>({kN, kO}, exact.y);
  step_again(capture);
  return capture;
}

}  // namespace lockstep::testing
