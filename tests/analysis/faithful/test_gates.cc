// A correct capture passes every gate; a fault in one number fails the gate that checks it and no
// other.
#include "analysis/faithful/gates.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "analysis/faithful/captured_step.h"
#include "analysis/faithful/gate_norms.h"
#include "analysis/faithful/whose_gradient.h"
#include "emulation/format/format.h"
#include "src/policy/find_policy.h"
#include "tests/analysis/faithful/hand_capture.h"

namespace lockstep {
namespace {

using testing::hand_capture;
using testing::kSeen;
using testing::kWeight;

std::map<std::string, GateResult> gates_of(const Capture& capture) {
  std::map<std::string, GateResult> gates;
  for (GateResult& gate : verify_capture(capture)) gates[gate.name] = std::move(gate);
  return gates;
}

// "V3 V5": the gates that failed.
std::string failed(const Capture& capture) {
  std::string names;
  for (const GateResult& gate : verify_capture(capture)) {
    if (gate.status == GateStatus::kFail) names += (names.empty() ? "" : " ") + gate.name;
  }
  return names;
}

float& first(Tensor& tensor) {
  return tensor.as<float>()[0];
}

TEST_CASE("what is NaN, or the same infinity, in both is equal; in one it is far") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto apart = [](float x, float y) {
    Tensor a(Shape{2}, Container::kF32), b(Shape{2}, Container::kF32);
    a.as<float>()[0] = x, b.as<float>()[0] = y;
    a.as<float>()[1] = 3, b.as<float>()[1] = 4;
    return distance(a, b);
  };
  CHECK(apart(kNan, kNan).difference == 1);
  CHECK(apart(kInf, kInf).reference == 4);
  CHECK_FALSE(std::isfinite(apart(kInf, -kInf).difference));
  CHECK_FALSE(std::isfinite(apart(1, kNan).difference));
}

TEST_CASE("a correct capture passes all gates, in their order") {
  std::vector<std::string> seen;
  const std::vector<GateResult> gates =
      verify_capture(hand_capture(), [&](const GateResult& gate) { seen.push_back(gate.name); });
  CHECK(seen == std::vector<std::string>{"V0", "V1", "V3", "V4", "V5", "V6", "V7"});
  for (const GateResult& gate : gates) {
    CAPTURE(gate.name);
    CAPTURE(gate.figure);
    CHECK(gate.status == GateStatus::kPass);
    CHECK(gate.details.empty());
  }
  CHECK(all_passed(gates));
  CHECK_FALSE(any_failed(gates));
}

TEST_CASE("a planted fault fails exactly the gate that checks it") {
  struct Planted {
    const char* what;
    const char* gate;
    std::function<void(Capture&)> fault;
  };
  const auto verify = [](Capture& c) -> CapturedVerify& { return c.verify[0]; };
  const std::vector<Planted> planted = {
      {"exported graph", "V0", [](Capture& c) { c.v0 = "differs"; }},
      {"FP64 loss", "V1", [&](Capture& c) { verify(c).loss64 *= 1 + 1e-11; }},
      {"FP64 gradient", "V1",
       [&](Capture& c) { verify(c).grads64.at(kWeight).as<double>()[0] *= 1 + 1e-8; }},
      {"FP32 loss", "V3", [&](Capture& c) { verify(c).loss32 *= 1 + 1e-5; }},
      {"FP32 gradient", "V3",
       [&](Capture& c) {
         first(verify(c).grads32.at(kWeight)) *= 1.01F;
         testing::step_again(c);
       }},
      {"buffer", "V4", [&](Capture& c) { first(verify(c).after.values.at(kSeen)) *= 1.001F; }},
      {"weight after the step", "V5",
       [&](Capture& c) { first(verify(c).after.values.at(kWeight)) *= 1.0001F; }},
      {"optimizer state", "V5",
       [&](Capture& c) {
         first(verify(c).after.optimizer.at(kWeight).at("momentum_buffer")) *= 1.0001F;
       }},
      {"learning rate", "V5", [](Capture& c) { c.steps[0].hyper[0]["lr"] *= 1.01; }},
      {"scale before a step", "V6", [](Capture& c) { c.steps[1].scale_before *= 2; }},
      {"scale after an overflow", "V6", [](Capture& c) { c.steps[2].scale_after *= 2; }},
      {"growth tracker", "V6", [](Capture& c) { c.steps[0].growth_tracker_after = 0; }},
      {"a step that was not skipped", "V6", [](Capture& c) { c.steps[2].stepped = true; }},
      {"BF16 loss", "V7", [&](Capture& c) { c.steps[0].loss = verify(c).loss32; }},
      {"BF16 gradient", "V7", [](Capture& c) { first(c.steps[0].grads.at(kWeight)) *= -1; }},
  };
  for (const Planted& p : planted) {
    CAPTURE(p.what);
    Capture capture = hand_capture();
    p.fault(capture);
    CHECK(failed(capture) == p.gate);
  }
}

TEST_CASE("the details show where a fault is: forward, backward, or beyond rounding") {
  Capture capture = hand_capture();
  capture.verify[0].micro.resize(1);
  capture.verify[0].micro[0].acts["n0"] = {1, 1, 1, 1};  // an L2 norm that y does not have
  first(capture.verify[0].grads32.at(kWeight)) *= 2;
  const GateResult v3 = gates_of(capture).at("V3");
  REQUIRE(!v3.details.empty());
  CHECK(v3.details.back().find("first node that differs: n0 linear in layer 'fc'") !=
        std::string::npos);
  capture.verify[0].micro.clear();
  CHECK(gates_of(capture).at("V3").details.back() ==
        "step 0: no forward node differs: look at the backward pass");
}

TEST_CASE("a wrong FP64 gradient: central differences say whose it is") {
  Capture capture = hand_capture();
  const auto last_detail = [&] { return gates_of(capture).at("V1").details.back(); };
  const auto says = [&](const char* words) {
    return last_detail().find(words) != std::string::npos;
  };
  Tensor& torch = capture.verify[0].grads64.at(kWeight);
  const Tensor right = torch;
  torch.as<double>()[0] *= 1.5;
  CHECK(failed(capture) == "V1");
  CHECK(says("'fc.weight'"));
  CHECK(says("PyTorch's own backward pass is wrong here"));
  torch = right;
  torch.as<double>()[0] *= 1 + 1e-8;  // too near
  CHECK(last_detail() == "no forward node differs by more than FP32's rounding");
}

TEST_CASE("the owner of a gradient: the replay, PyTorch or neither; a kink gives no answer") {
  const auto of = [](std::vector<double> values) {
    Tensor t(Shape{static_cast<int64_t>(values.size())}, Container::kF64);
    std::ranges::copy(values, t.as<double>().begin());
    return t;
  };
  const Tensor w = of({1, 2}), right = of({3, 4}), wrong = of({3, 5});
  const auto loss = [](const Tensor& x) { return 3 * x.as<double>()[0] + 4 * x.as<double>()[1]; };
  const auto owner = [&](const Tensor& replay, const Tensor& torch) {
    return whose_gradient(w, replay, torch, loss).value().right;
  };
  CHECK(owner(right, wrong) == GradientOwner::kReplay);
  CHECK(owner(wrong, right) == GradientOwner::kTorch);
  CHECK(owner(wrong, of({3, 6})) == GradientOwner::kNeither);
  CHECK_FALSE(whose_gradient(w, right, right, loss).has_value());
  CHECK_FALSE(whose_gradient(w, of({NAN, 4}), right, loss).has_value());
  const auto kink = [](const Tensor& x) {
    return 3 * x.as<double>()[0] + 4 * std::max(x.as<double>()[1], 2 - 5e-5);
  };
  CHECK(whose_gradient(w, right, wrong, kink).value().right == GradientOwner::kNeither);
}

TEST_CASE("a step by other kernels moves what is in FP32, by signs that a seed draws") {
  const Capture capture = hand_capture();
  const Policy policy = find_policy("fp32");
  CapturedStepRunner runner(capture, policy, /*is_fp64=*/false);
  const CapturedStep& step = capture.steps.front();
  const Tensors& values = capture.verify[0].before.values;
  const auto loss = [&](uint64_t signs, float ulps) {
    return runner.run_moved(step, values, 1, {.signs = signs, .ulps = ulps}).loss;
  };
  const double plain = runner.run(step, values).loss;
  CHECK(loss(1, 0) == plain);
  CHECK(loss(1, 64) == loss(1, 64));
  CHECK(loss(1, 64) != loss(2, 64));
  CHECK(loss(1, 64) != plain);
  CHECK(std::abs(loss(1, 64) - plain) < 1e-4 * plain);
}

TEST_CASE("elements that FP32 does not determine are left out, and counted") {
  Capture capture = hand_capture();
  first(capture.verify[0].grads32.at(kWeight)) *= 2;
  testing::step_again(capture);
  CHECK(failed(capture) == "V3");
  capture.verify[0].noise[kWeight] = {{2, 3}, {0b10000000}};
  const auto gates = gates_of(capture);
  CHECK(gates.at("V3").status == GateStatus::kPass);
  CHECK(gates.at("V3").floor.noise == 1);
  CHECK(gates.at("V3").floor.elements == 6);
  CHECK(gates.at("V3").floor.text() == "judged by a floor: 1 of 6 elements left out as noise");
}

// A buffer whose true value is zero: FP32 leaves rounding errors, and they differ.
Capture cancelling_buffer() {
  Capture capture = hand_capture();
  CapturedVerify& verify = capture.verify[0];
  Tensor& seen = verify.after.values.at(kSeen);
  verify.buffers64.emplace(kSeen, seen.to(Container::kF64));
  const testing::HandStep exact = testing::hand_step(testing::Hand::kDouble);
  for (size_t k = 0; k < exact.y.size(); ++k) {
    verify.buffers64.at(kSeen).as<double>()[k] = exact.y[k];
    seen.as<float>()[k] *= 1 + 2e-5F;  // PyTorch's FP32 is this far off
  }
  return capture;
}

TEST_CASE(
    "V4: a buffer that FP32 does not determine is judged by the error of PyTorch's own FP32") {
  const GateResult v4 = gates_of(cancelling_buffer()).at("V4");
  CHECK(v4.status == GateStatus::kPass);
  CHECK(v4.floor.by_torch == 1);
  CHECK(v4.figure.find("judged by a floor: 1 of 1 by the error of PyTorch's own FP32") !=
        std::string::npos);

  Capture older = cancelling_buffer();  // PyTorch's FP64 buffer was not recorded
  older.verify[0].buffers64.clear();
  CHECK(failed(older) == "V4");

  // Another rule in PyTorch: then the FP64 buffers differ, too, and FP32's error is no excuse.
  Capture wrong = cancelling_buffer();
  for (double& x : wrong.verify[0].buffers64.at(kSeen).as<double>()) x *= 1 + 1e-6;
  const GateResult refused = gates_of(wrong).at("V4");
  CHECK(refused.status == GateStatus::kFail);
  REQUIRE(refused.details.size() == 1);
  CHECK(refused.details[0].find("buffer 'seen', step 0: in FP64 it is") == 0);

  Capture beyond = cancelling_buffer();  // ours is further off than three times PyTorch's error
  for (float& x : beyond.verify[0].before.values.at(kWeight).as<float>()) x *= 1 + 1e-3F;
  CHECK(gates_of(beyond).at("V4").status == GateStatus::kFail);
}

TEST_CASE("V3: the order of a long sum may explain PyTorch's own error, a short one may not") {
  const auto with_terms = [](int64_t terms) {
    Capture capture = hand_capture();
    GraphInput input;
    input.id = "in2";
    input.path = "long";
    input.type = {{terms}};
    capture.graphs[0].inputs.push_back(input);
    for (CapturedStep& step : capture.steps) {
      step.micro[0].inputs.emplace("long", Tensor({terms}, Container::kF32));
    }
    capture.verify[0].loss32 *= 1 + 1e-5;
    return capture;
  };
  CHECK(failed(with_terms(100)) == "V3");
  const Capture long_sum = with_terms(40'000);  // 3 sqrt(40 000) 2^-24 = 3.6e-5
  const GateResult v3 = gates_of(long_sum).at("V3");
  CHECK(v3.status == GateStatus::kPass);
  CHECK(v3.figure.find("judged by a floor: 3 times the error of FP32 against FP64 in step 0") !=
        std::string::npos);
  Capture wrong = with_terms(40'000);
  wrong.verify[0].loss32 *= 1 + 1e-3;
  CHECK(failed(wrong) == "V3");

  Capture gradient = with_terms(40'000);
  for (float& x : gradient.verify[0].grads32.at(kWeight).as<float>()) x *= 1 + 2e-5F;
  testing::step_again(gradient);
  const GateResult by_torch = gates_of(gradient).at("V3");
  CHECK(by_torch.status == GateStatus::kPass);
  CHECK(by_torch.floor.by_torch == 1);
  for (float& x : gradient.verify[0].grads32.at(kWeight).as<float>()) x *= 1 + 1e-3F;
  testing::step_again(gradient);
  CHECK(failed(gradient) == "V3");
}

TEST_CASE("V7: the loss may be one ulp of its own format off, and not two") {
  const auto off_by = [](double ulps, const char* format) {
    Capture capture = hand_capture();
    CapturedStep& step = capture.steps[0];
    const double unit = ulp(step.loss, find_format("bf16"));
    step.loss_format = format;
    step.loss += ulps * unit;
    step.micro[0].loss = step.loss;
    return gates_of(capture).at("V7");
  };
  CHECK(off_by(0.9, "fp32").status == GateStatus::kFail);
  const GateResult v7 = off_by(0.9, "bf16");
  CHECK(v7.status == GateStatus::kPass);
  CHECK(v7.figure.find("judged by a floor: one ulp of the loss in bf16") != std::string::npos);
  CHECK(off_by(-2.1, "bf16").status == GateStatus::kFail);
}

TEST_CASE("V7: the loss may be as far off as FP32 is from PyTorch's FP32, which V3 judges") {
  Capture capture = hand_capture();
  CapturedStep& step = capture.steps[0];
  const double off = 0.9 * ulp(step.loss, find_format("bf16"));
  capture.verify[0].loss32 += off;
  step.loss += off;
  step.micro[0].loss = step.loss;
  step.loss_format = "fp32";
  CHECK(failed(capture) == "V3");
}

TEST_CASE("a gradient that one side lacks") {
  Capture capture = hand_capture();
  capture.verify[0].grads64.erase(kWeight);
  const auto gates = gates_of(capture);
  CHECK(gates.at("V1").status == GateStatus::kFail);
  CHECK(gates.at("V1").details.front() ==
        "step 0: 'fc.weight' has a gradient here and none in PyTorch");
}

TEST_CASE("V5 of recorded updates: the weights before a later verify step") {
  Capture capture = hand_capture();
  capture.optimizer = "recorded";
  capture.optimizer_class = "Lion";
  capture.steps[0].weights[kWeight] = capture.verify[0].before.values.at(kWeight);
  first(capture.steps[0].weights[kWeight]) += 1;
  auto gate = gates_of(capture).at("V5");
  CHECK(gate.status == GateStatus::kNotApplicable);  // the first step has none before it
  CHECK(gate.figure == "Lion has no rule here: its updates are recorded");
  CapturedVerify later = capture.verify[0];
  later.step = 2;  // step 1 changed nothing
  later.before.values[kWeight] = capture.steps[0].weights[kWeight];
  capture.verify.push_back(later);
  CHECK(gates_of(capture).at("V5").status == GateStatus::kPass);
  first(capture.verify[1].before.values[kWeight]) += 1;
  gate = gates_of(capture).at("V5");
  CHECK(gate.status == GateStatus::kFail);
  CHECK(gate.details.front() == "fc.weight: not the weights before step 2");
}

TEST_CASE("data that a capture does not have is not judged") {
  Capture bare = hand_capture();
  bare.amp.autocast = false;
  bare.scaler.enabled = false;
  bare.optimizer.clear();
  bare.optimizer_class = "Own";
  bare.v0.clear();
  auto gates = gates_of(bare);
  CHECK(gates.at("V0").status == GateStatus::kNotRecorded);
  CHECK(gates.at("V5").status == GateStatus::kNotApplicable);
  CHECK(gates.at("V5").figure == "Own is not modelled: gradients only");
  CHECK(gates.at("V6").status == GateStatus::kNotApplicable);
  CHECK(gates.at("V7").status == GateStatus::kNotApplicable);
  CHECK(gates.at("V1").status == GateStatus::kPass);

  Capture unverified = hand_capture();
  unverified.verify.clear();
  const std::vector<GateResult> all = verify_capture(unverified);
  CHECK_FALSE(any_failed(all));
  CHECK_FALSE(all_passed(all));  // V1 could not be judged

  Capture broken = hand_capture();  // PyTorch's own loss is NaN: nothing to compare with
  broken.verify[0].loss32 = std::numeric_limits<double>::quiet_NaN();
  gates = gates_of(broken);
  CHECK(gates.at("V1").status == GateStatus::kNotApplicable);
  CHECK(gates.at("V3").status == GateStatus::kNotApplicable);
  CHECK(gates.at("V4").status == GateStatus::kNotApplicable);

  Capture skipped = hand_capture();  // its only verify step overflowed
  skipped.steps[0].found_inf = true;
  CHECK(gates_of(skipped).at("V7").status == GateStatus::kNotRecorded);

  Capture still = hand_capture();  // no buffer of the model changes
  still.graphs[0].mutations.clear();
  CHECK(gates_of(still).at("V4").status == GateStatus::kNotApplicable);
}

}  // namespace
}  // namespace lockstep
