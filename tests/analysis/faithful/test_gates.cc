// A correct capture passes every gate; a fault in one number fails the gate that checks it and no
// other.
#include "analysis/faithful/gates.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

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
  CHECK(gates.at("V3").floor.text() == "1 of 6 elements left out as noise");
}

TEST_CASE("a gradient that one side lacks") {
  Capture capture = hand_capture();
  capture.verify[0].grads64.erase(kWeight);
  const auto gates = gates_of(capture);
  CHECK(gates.at("V1").status == GateStatus::kFail);
  CHECK(gates.at("V1").details.front() ==
        "step 0: 'fc.weight' has a gradient here and none in PyTorch");
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
