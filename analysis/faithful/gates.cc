// The gates in their order, V0, and the norms and bounds that they share.
#include "analysis/faithful/gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/faithful/gate_norms.h"

namespace lockstep {
namespace {

GateResult gate_v0(const Capture& capture) {
  GateResult gate{.name = "V0", .subject = "exported graph against the model, at capture time"};
  if (capture.v0.empty()) return gate;
  gate.status = capture.v0 == "bit-exact" ? GateStatus::kPass : GateStatus::kFail;
  gate.figure = "stored by the capture: " + capture.v0;
  return gate;
}

}  // namespace

std::string_view to_string(GateStatus status) {
  constexpr std::string_view kNames[] = {"PASS", "FAIL", "n/a", "not recorded"};
  return kNames[static_cast<size_t>(status)];
}

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
    return g.name == "V1" && g.status == GateStatus::kPass;
  });
}

void FloorShare::add(const FloorShare& other) {
  tensors += other.tensors;
  by_floor += other.by_floor;
  by_chaos += other.by_chaos;
  elements += other.elements;
  noise += other.noise;
}

std::string FloorShare::text() const {
  std::string text;
  const auto add = [&text](int64_t count, int64_t of, const char* what) {
    if (count > 0) text += fmt::format("{}{} of {} {}", text.empty() ? "" : ", ", count, of, what);
  };
  add(by_floor, tensors, "by the absolute floor");
  add(by_chaos, tensors, "by what one ulp moves");
  add(noise, elements, "elements left out as noise");
  return text;
}

std::string worst_text(const std::string& where, const FloorShare& floor) {
  const std::string floors = floor.text();
  return (where.empty() ? "-" : where) + (floors.empty() ? "" : "; " + floors);
}

double Distance::one_minus_cosine() const {
  if (value == 0 && reference == 0) return 0;
  return 1 - dot / (value * reference);
}

Distance distance(const Tensor& a, const Tensor& b, const PackedBits* noise) {
  const auto at = [](const Tensor& t, size_t i) -> double {
    switch (t.container()) {
      case Container::kF32:
        return t.as<float>()[i];
      case Container::kF64:
        return t.as<double>()[i];
      case Container::kI32:
        return t.as<int32_t>()[i];
    }
    return 0;
  };
  Distance d;
  for (size_t i = 0; i < static_cast<size_t>(b.size()); ++i) {
    ++d.elements;
    if (noise != nullptr && noise->at(static_cast<int64_t>(i))) {
      ++d.noise;
      continue;
    }
    const double x = at(a, i), y = at(b, i);
    d.difference += (x - y) * (x - y);
    d.value += x * x;
    d.reference += y * y;
    d.dot += x * y;
  }
  d.difference = std::sqrt(d.difference);
  d.value = std::sqrt(d.value);
  d.reference = std::sqrt(d.reference);
  return d;
}

// Not a number is as far off as can be.
void Worst::take(double value, double bound, const std::string& at) {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  double found = value == 0 ? 0 : value / bound;
  if (std::isnan(found)) found = kFar;
  if (found < ratio || (found == ratio && !where.empty())) return;
  ratio = found;
  where = at;
}

}  // namespace lockstep
