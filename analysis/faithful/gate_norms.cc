// See gate_norms.h.
#include "analysis/faithful/gate_norms.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace lockstep {

std::string worst_text(const std::string& where, const FloorShare& floor) {
  const std::string floors = floor.text();
  return (where.empty() ? "-" : where) + (floors.empty() ? "" : "; " + floors);
}

std::string gradients_text(const Worst& gradients, const FloorShare& floor) {
  if (floor.tensors == 0) return "no gradients";
  return fmt::format("gradients {:.2g} of their bound (worst {})", gradients.ratio,
                     worst_text(gradients.where, floor));
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
    if ((std::isnan(x) && std::isnan(y)) || (std::isinf(x) && x == y)) continue;
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

// NaN counts as infinitely far.
void Worst::take(double value, double bound, const std::string& at) {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  double found = value == 0 ? 0 : value / bound;
  if (std::isnan(found)) found = kFar;
  if (found < ratio || (found == ratio && !where.empty())) return;
  ratio = found;
  where = at;
}

}  // namespace lockstep
