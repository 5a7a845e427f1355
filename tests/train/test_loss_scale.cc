// Loss scalers: the golden trajectory of torch's GradScaler, and the edges of its arithmetic.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "src/core/error.h"
#include "src/train/loss_scale.h"

using namespace lockstep;

namespace {

// The trajectory as amp-presets.md A7 writes it: log2(scale) per step, 'x' where it overflowed. A
// step overflows iff log2(scale) > 14.
std::string trajectory(const LossScaler& scaler, const LossScaleSpec& spec, int steps) {
  constexpr int kLargestLog2 = 14;
  std::string text;
  LossScaleState state = scaler.initial(spec);
  for (int i = 0; i < steps; ++i) {
    const int log2 = std::ilogb(state.scale);
    const bool overflow = log2 > kLargestLog2;
    text += (i == 0 ? "" : " ") + std::to_string(log2) + (overflow ? "x" : "");
    state = scaler.update(spec, state, overflow);
  }
  return text;
}

LossScaleSpec torch_spec() {
  LossScaleSpec spec;
  spec.kind = "torch-dynamic";
  spec.init_scale = 65536;
  return spec;
}

}  // namespace

TEST_CASE("torch-dynamic follows the golden trajectory of GradScaler") {
  LossScaleSpec spec = torch_spec();
  spec.growth_interval = 4;
  CHECK(trajectory(find_loss_scaler("torch-dynamic"), spec, 17) ==
        "16x 15x 14 14 14 14 15x 14 14 14 14 15x 14 14 14 14 15x");
}

TEST_CASE("torch-dynamic forms products in double and keeps the scale in FP32") {
  const LossScaler& scaler = find_loss_scaler("torch-dynamic");
  LossScaleSpec spec = torch_spec();
  spec.backoff_factor = 0.1;  // not an FP32 number: 9.0f * 0.1f is another one
  const LossScaleState state = scaler.update(spec, {9.0f, 7}, true);
  CHECK(state.scale == static_cast<float>(9.0 * 0.1));
  CHECK(state.growth_tracker == 0);
}

TEST_CASE("torch-dynamic has no minimum: 166 halvings from 2^16 give zero") {
  const LossScaler& scaler = find_loss_scaler("torch-dynamic");
  const LossScaleSpec spec = torch_spec();
  LossScaleState state = scaler.initial(spec);
  int halvings = 0;
  while (state.scale > 0 && halvings < 1000) {
    state = scaler.update(spec, state, true);
    ++halvings;
  }
  CHECK(halvings == 16 + 149 + 1);  // to 1, to 2^-149 = FP32's smallest, and to zero (tie to even)
}

TEST_CASE("torch-dynamic does not take a growth to infinity, but restarts its count") {
  const LossScaler& scaler = find_loss_scaler("torch-dynamic");
  LossScaleSpec spec = torch_spec();
  spec.growth_interval = 2;
  const float largest_power = std::ldexp(1.0f, 127);
  const LossScaleState state = scaler.update(spec, {largest_power, 1}, false);
  CHECK(state == LossScaleState{largest_power, 0});
}

TEST_CASE("none is scale 1 whatever the specification says, and never looks") {
  const LossScaler& scaler = find_loss_scaler("none");
  LossScaleSpec spec = torch_spec();
  CHECK(scaler.initial(spec) == LossScaleState{1, 0});
  CHECK(scaler.update(spec, {1, 0}, true) == LossScaleState{1, 0});
  CHECK_FALSE(scaler.checks_finite);
}

TEST_CASE("static keeps its scale but does look") {
  const LossScaler& scaler = find_loss_scaler("static");
  LossScaleSpec spec;
  spec.init_scale = 128;
  CHECK(scaler.initial(spec) == LossScaleState{128, 0});
  CHECK(scaler.update(spec, {128, 0}, true) == LossScaleState{128, 0});
  CHECK(scaler.update(spec, {128, 0}, false) == LossScaleState{128, 0});
  CHECK(scaler.checks_finite);
}

TEST_CASE("every scaler is found by its name, an unknown one is refused with a hint") {
  for (const LossScaler& scaler : loss_scalers()) {
    CHECK(&find_loss_scaler(scaler.name) == &scaler);
    CHECK_FALSE(scaler.help.empty());
    CHECK_FALSE(scaler.source.empty());
  }
  CHECK_THROWS_WITH_AS(find_loss_scaler("torch-dynamik"), doctest::Contains("torch-dynamic"),
                       InputError);
}
