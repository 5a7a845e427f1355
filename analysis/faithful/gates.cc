// The gates in their order, and V0.
#include "analysis/faithful/gates.h"

#include <algorithm>

#include "analysis/faithful/gate_list.h"

namespace lockstep {
namespace {

GateResult gate_v0(const Capture& capture) {
  GateResult gate{.name = "V0", .subject = "graph against the model, at capture time"};
  if (capture.v0.empty()) return gate;
  gate.status = capture.v0 == "bit-exact" ? GateStatus::kPass : GateStatus::kFail;
  gate.figure = "stored by the capture: " + capture.v0;
  return gate;
}

}  // namespace

std::vector<GateResult> verify_capture(const Capture& capture,
                                       const std::function<void(const GateResult&)>& done) {
  std::vector<GateResult> gates;
  const auto add = [&](GateResult gate) {
    gates.push_back(std::move(gate));
    if (done) done(gates.back());
  };
  add(gate_v0(capture));
  add(gate_v1(capture));
  GateResult v4;
  add(gate_v3(capture, v4));
  add(std::move(v4));
  add(gate_v5(capture));
  add(gate_v6(capture));
  add(gate_v7(capture));
  return gates;
}

bool any_failed(const std::vector<GateResult>& gates) {
  return std::ranges::any_of(gates, [](const auto& g) { return g.status == GateStatus::kFail; });
}
bool all_passed(const std::vector<GateResult>& gates) {
  return !any_failed(gates) && std::ranges::any_of(gates, [](const auto& g) {
    return g.is_required && g.status == GateStatus::kPass;
  });
}

}  // namespace lockstep
