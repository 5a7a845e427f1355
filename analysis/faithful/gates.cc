// The gates in their order, and V0.
#include "analysis/faithful/gates.h"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/faithful/gate_list.h"

namespace lockstep {
namespace {

GateResult gate_v0(const Capture& capture) {
  GateResult gate{.name = "V0", .subject = "graph against the model, at capture time"};
  if (capture.v0.empty()) return gate;
  gate.status = capture.v0 == "bit-exact" ? GateStatus::kPass : GateStatus::kFail;
  gate.figure = "stored by the capture: " + capture.v0;
  if (capture.part) {
    gate.figure += fmt::format(
        "; the part alone against the run: output {}, gradients of weights {}, of inputs {}",
        capture.part->output, capture.part->gradient, capture.part->input_gradient);
  }
  return gate;
}

// What only V5 reads.
void forget_updates(Capture& capture) {
  for (CapturedStep& step : capture.steps) step.weights.clear();
  for (CapturedVerify& verify : capture.verify) {
    verify.after.optimizer.clear();
    for (const Graph& graph : capture.graphs) {
      for (const Parameter& p : graph.parameters) verify.after.values.erase(p.name);
    }
  }
}

}  // namespace

std::vector<GateResult> verify_capture(Capture capture,
                                       const std::function<void(const GateResult&)>& done) {
  std::vector<GateResult> gates;
  const auto add = [&](GateResult gate) {
    gates.push_back(std::move(gate));
    if (done) done(gates.back());
  };
  add(gate_v0(capture));
  GateResult v5 = gate_v5(capture);  // first: its tensors leave room for V1, which needs most
  forget_updates(capture);
  add(gate_v1(capture));
  GateResult v4;
  add(gate_v3(capture, v4));
  add(std::move(v4));
  add(std::move(v5));
  for (CapturedVerify& verify : capture.verify) verify.grads64.clear();
  add(gate_v6(capture));
  add(gate_v7(capture));
  if (capture.part) add(gate_v8(capture));
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
