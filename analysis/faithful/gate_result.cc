// See gate_result.h.
#include "analysis/faithful/gate_result.h"

#include <fmt/format.h>

namespace lockstep {

std::string_view to_string(GateStatus status) {
  constexpr std::string_view kNames[] = {"PASS", "FAIL", "n/a", "not recorded"};
  return kNames[static_cast<size_t>(status)];
}

void FloorShare::add(const FloorShare& other) {
  tensors += other.tensors;
  by_floor += other.by_floor;
  by_chaos += other.by_chaos;
  elements += other.elements;
  noise += other.noise;
  by_torch += other.by_torch;
  by_terms += other.by_terms;
}

std::string FloorShare::text() const {
  std::string text;
  const auto add = [&text](int64_t count, int64_t of, const char* what) {
    if (count > 0) text += fmt::format("{}{} of {} {}", text.empty() ? "" : ", ", count, of, what);
  };
  add(by_floor, tensors, "by the absolute floor");
  add(by_chaos, tensors, "by what one ulp moves");
  add(by_torch, tensors, "by the error of PyTorch's own FP32");
  add(by_terms, tensors, "by the number of terms");
  add(noise, elements, "elements left out as noise");
  return text.empty() ? text : "judged by a floor: " + text;
}

}  // namespace lockstep
