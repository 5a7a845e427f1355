// Recorded updates lead from PyTorch's weights before a step to those after it, bit for bit.
#include "src/update/recorded_update.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "src/core/error.h"
#include "src/update/stored_parameter.h"

namespace lockstep {
namespace {

constexpr float kTiny = std::numeric_limits<float>::denorm_min();
constexpr float kMost = std::numeric_limits<float>::max();

Tensor tensor_of(const std::vector<float>& values) {
  return Tensor::from<float>({static_cast<int64_t>(values.size())}, values);
}

// As a lane of FP32 numbers takes the step.
std::vector<float> stepped(const Tensor& weight, const RecordedUpdate& update,
                           const std::string& format) {
  StoredParameter p;
  p.weight = weight;
  const Format* fp32 = &find_format("fp32");
  OptimizerArrays<float> call = arrays_of<float>(p, update.change, 1);
  call.formats = {fp32, fp32, &find_format(format), Rounding::kNearestEven, {}};
  const auto exact = update.to_be_set(p.weight);
  optimizer_step(active_kernels(), recorded_updates(), numbers_of({"recorded", {}}), 0.0, call,
                 nullptr);
  set_elements(exact, p.weight);
  const auto values = p.weight.as<float>();
  return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE("FP32 weights of the captured run follow it bit for bit") {
  // A change of sign, a collapse to almost nothing, zeros of both signs, and numbers at the ends.
  std::vector<float> before = {0.1F, 1, 0.3F, 1, -0.0F, 0, kTiny, 2, kMost, -kMost},
                     after = {-0.05F, 1e-8F, 0.3F, kTiny, -0.0F, -0.0F, 0, 2.0000002F, 1, kMost};
  uint32_t state = 1;
  for (int i = 0; i < 4096; ++i) {  // any two finite numbers
    const auto draw = [&] {
      state = state * 1664525 + 1013904223;
      const auto x = std::bit_cast<float>(state);
      return std::isfinite(x) ? x : 1.0F;
    };
    before.push_back(draw());
    after.push_back(draw());
  }
  const RecordedUpdate update = recorded_update(tensor_of(before), tensor_of(after));
  CHECK(update.inexact.size() > 4);  // plain sums would not do
  const std::vector<float> found = stepped(tensor_of(before), update, "fp32");
  for (size_t i = 0; i < after.size(); ++i) {
    CAPTURE(before[i]);
    CAPTURE(after[i]);
    CHECK(std::bit_cast<uint32_t>(found[i]) == std::bit_cast<uint32_t>(after[i]));
  }
}

TEST_CASE("other weights take the update, rounded to their format") {
  const RecordedUpdate update =
      recorded_update(tensor_of({1, 0.1F, 1}), tensor_of({1.25F, -0.05F, 1.0009765625F}));
  CHECK(stepped(tensor_of({3, 3, 3}), update, "fp32") ==
        std::vector<float>{3.25, 3 + (-0.05F - 0.1F), 3.0009765625});
  CHECK(stepped(tensor_of({3, 3, 3}), update, "bf16") ==
        std::vector<float>{3.25, 2.84375F, 3});  // the last one is lost
}

TEST_CASE("recorded updates are found by name, and are no row of the table") {
  CHECK(&find_optimizer("recorded") == &recorded_updates());
  for (const Optimizer& row : optimizers()) CHECK(row.name != recorded_updates().name);
  CHECK_THROWS_AS(check_optimizer_spec({"recorded", {{"lr", 1}}}), InputError);
}

}  // namespace lockstep
