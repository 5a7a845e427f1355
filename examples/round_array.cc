// Task: what would FP16 do to my array of numbers?
// Rounds an array and prints what was lost. Build: cmake --build build/release --target round_array
#include <fmt/format.h>

#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/quantize.h"

int main() {
  using namespace lockstep;
  const std::vector<float> gradients = {3e-9f, -2e-8f, 1e-7f, 4e-5f, -0.1f, 1.0f, 7e4f, 0.0f};
  std::vector<float> rounded(gradients.size());
  TensorStats stats;
  quantize<float>(active_kernels(), gradients, rounded,
                  {&find_format("fp16"), Rounding::kNearestEven, {}}, &stats);
  for (size_t i = 0; i < gradients.size(); ++i) {
    fmt::print("{:>10.3g} -> {:.6g}\n", gradients[i], rounded[i]);
  }
  fmt::print("{} values: {} became zero, {} subnormal, {} infinite\n", stats.count, stats.to_zero,
             stats.to_subnormal, stats.to_infinity);
  return stats.to_zero == 2 && stats.to_infinity == 1 ? 0 : 1;  // run as a test
}
