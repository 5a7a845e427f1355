// The polar method with 64 attempts per number; see noise.h.
#include "src/data/noise.h"

#include <cmath>

#include "emulation/math/exp_log.h"

namespace lockstep {
namespace {

constexpr std::string_view kNoisePath = "noise";
// One attempt fails with probability 1 - pi/4: 64 in a row practically never (2^-142).
constexpr uint64_t kAttempts = 64;

}  // namespace

double normal_number(const RandomStream& random, uint64_t n) {
  for (uint64_t attempt = 0; attempt < kAttempts; ++attempt) {
    const uint64_t at = 2 * (n * kAttempts + attempt);
    const double u = 2 * random.uniform(at) - 1, v = 2 * random.uniform(at + 1) - 1;
    const double s = u * u + v * v;
    if (s > 0 && s < 1) return u * std::sqrt(-2 * lockstep_log(s) / s);
  }
  return 0;
}

void add_noise(const Graph& graph, uint64_t seed, uint64_t draw, Batch& batch) {
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const GraphInput& input = graph.inputs[i];
    if (!input.path.starts_with(kNoisePath)) continue;
    Tensor numbers(input.type.shape, Container::kF32);
    const auto out = numbers.as<float>();
    const RandomStream random(seed, RandomPurpose::kNoise, static_cast<uint32_t>(i));
    constexpr int kDrawShift = 24;  // fewer numbers per step
    const uint64_t first = draw << kDrawShift;
    for (size_t n = 0; n < out.size(); ++n) {
      out[n] = static_cast<float>(normal_number(random, first + n));
    }
    batch.insert_or_assign(input.path, std::move(numbers));
  }
}

}  // namespace lockstep
