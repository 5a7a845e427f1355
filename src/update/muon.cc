// The matrix part is orthogonal.h's.
#include "src/update/muon.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "src/update/orthogonal.h"

namespace lockstep {
namespace {

template <typename T>
NewtonSchulz iteration_of(const HyperNumbers& n) {
  const char* const wide = std::is_same_v<T, double> ? "fp64" : "fp32";
  return {.a = n["ns_a"],
          .b = n["ns_b"],
          .c = n["ns_c"],
          .eps = n["eps"],
          .steps = static_cast<int64_t>(n["ns_steps"]),
          .format = &find_format(n["ns_bf16"] != 0 ? "bf16" : wide)};
}

double length_of(const HyperNumbers& n, double lr, double rows, double columns) {
  constexpr double kRmsOfAdamw = 0.2;
  return lr * (n["match_rms_adamw"] != 0 ? kRmsOfAdamw * std::sqrt(std::max(rows, columns))
                                         : std::sqrt(std::max(1.0, rows / columns)));
}

}  // namespace

template <typename T>
void muon_step(const TensorStep<T>& step) {
  const HyperNumbers& n = step.numbers;
  AverageRule average;
  average.momentum = n["momentum"];
  average.nesterov = n["nesterov"] != 0;
  const int64_t count = step.arrays.count, rows = step.arrays.shape.front();
  std::vector<T> direction = step.advance(average, step.arrays.grad, count, 0);
  const int64_t columns = count / std::max<int64_t>(1, rows);
  orthogonalize(step.kernels, direction.data(), rows, columns, iteration_of<T>(n));
  const double length =
      length_of(n, step.lr, static_cast<double>(rows), static_cast<double>(columns));
  step.finish(direction.data(), length, step.lr, n["weight_decay"]);
}

template void muon_step(const TensorStep<float>&);
template void muon_step(const TensorStep<double>&);

}  // namespace lockstep
