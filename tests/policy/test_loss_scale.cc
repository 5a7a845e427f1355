// Loss scalers: the golden trajectories of their systems, and the edges of their arithmetic.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "src/core/error.h"
#include "src/policy/loss_scale.h"

using namespace lockstep;

namespace {

LossScaleSpec defaults(std::string_view kind) {
  return find_loss_scaler(kind).defaults;
}

// The specification of the golden trajectories: they start at 2^16 and grow by windows of 4 steps.
LossScaleSpec golden(std::string_view kind) {
  LossScaleSpec spec = defaults(kind);
  spec.init_scale = 65536;
  spec.growth_interval = 4;
  return spec;
}

// log2(scale) per step, 'x' where it overflowed, '!' where training stopped. A step overflows when
// log2(scale) is above `largest`.
std::string trajectory(const LossScaleSpec& spec, int steps, int largest = 14) {
  const LossScaler& scaler = find_loss_scaler(spec.kind);
  std::string text;
  LossScaleState state = scaler.initial(spec);
  for (int i = 0; i < steps && !state.raised; ++i) {
    const int log2 = std::ilogb(state.scale);
    text += (i == 0 ? "" : " ") + std::to_string(log2) + (log2 > largest ? "x" : "");
    state = scaler.update(spec, state, log2 > largest);
  }
  return text + (state.raised ? " !" : "");
}

// The state after these steps: 'x' is an overflow, '.' a clean step.
LossScaleState after(const LossScaleSpec& spec, std::string_view steps) {
  const LossScaler& scaler = find_loss_scaler(spec.kind);
  LossScaleState state = scaler.initial(spec);
  for (const char step : steps) state = scaler.update(spec, state, step == 'x');
  return state;
}

}  // namespace

TEST_CASE("every scaler follows the golden trajectory of its system") {
  struct Golden {
    std::string_view kind, steps;
  };
  // Keras and fairseq were derived from their sources by hand. The others were computed with a
  // separate program for each system.
  const Golden rows[] = {
      {"torch-dynamic", "16x 15x 14 14 14 14 15x 14 14 14 14 15x 14 14 14 14 15x"},
      {"apex", "16x 15x 14 14 14 14 15x 14 14 14 14 15x 14 14 14 14 15x"},
      {"apex-fp16-utils", "16x 15x 14 14 14 14 15x 14 14 14 14 15x 14 14 14 14 15x"},
      {"deepspeed", "16x 16x 15x 14 14 14 14 14 15x 15x 14 14 14 14 14 15x 15x"},
      {"megatron", "16x 16x 15x 14 14 14 14 15x 15x 14 14 14 14 15x 15x"},
      {"mxnet", "16x 16x 15x 14 13 13 13 13 14 14 14 14 15x 15x 14 13 13 13 13 14"},
      {"flax", "16x 15x 14 14 14 14 14 15x 14 14 14 14 14 15x"},
      {"keras", "16x 15x 14 14 14 14 15x 14 14 14 14 15x 14 14 14 14 15x"},
      {"fairseq", "16x 15x 14 14 14 14 15x 14 14 14 14 15x 14 14 14 14 15x"},
  };
  int dynamic = 0;
  for (const LossScaler& scaler : loss_scalers()) dynamic += scaler.knows("growth_interval");
  CHECK(dynamic == static_cast<int>(std::size(rows)));
  for (const Golden& row : rows) {
    CAPTURE(row.kind);
    const int steps = 1 + static_cast<int>(std::ranges::count(row.steps, ' '));
    CHECK(trajectory(golden(row.kind), steps) == row.steps);
  }
  LossScaleSpec consecutive = golden("deepspeed");
  consecutive.consecutive_hysteresis = true;
  CHECK(trajectory(consecutive, 10) == "16x 16x 15x 14 14 14 14 14 15x 15x");
}

TEST_CASE("defaults are those of the systems") {
  CHECK(default_numbers_text(find_loss_scaler("torch-dynamic")) ==
        "init_scale=65536, growth_factor=2, backoff_factor=0.5, growth_interval=2000, min_scale=0, "
        "max_scale=inf");
  CHECK(default_numbers_text(find_loss_scaler("apex")) ==
        "init_scale=65536, growth_factor=2, growth_interval=2000, min_scale=0, max_scale=16777216");
  CHECK(default_numbers_text(find_loss_scaler("deepspeed")) ==
        "init_scale=65536, growth_factor=2, growth_interval=1000, min_scale=1, max_scale=inf, "
        "hysteresis=2, consecutive_hysteresis=false, raise_at_min=true");
  CHECK(default_numbers_text(find_loss_scaler("fairseq")) ==
        "init_scale=32768, growth_factor=2, growth_interval=2000, min_scale=0.0001, max_scale=inf, "
        "tolerance=0, threshold=0");
  CHECK(default_numbers_text(find_loss_scaler("none")).empty());
}

TEST_CASE("torch-dynamic forms products in double and keeps the scale in FP32") {
  LossScaleSpec spec = defaults("torch-dynamic");
  spec.backoff_factor = 0.1;  // not an FP32 number: 9.0f * 0.1f is another one
  spec.init_scale = 9;
  CHECK(after(spec, "x").scale == static_cast<float>(9.0 * 0.1));
  CHECK(after(spec, "x").scale != 9.0f * 0.1f);
  CHECK(after(spec, "..x").growth_tracker == 0);
}

TEST_CASE("megatron and flax take their factors in FP32, apex holds the scale in double") {
  LossScaleSpec spec = defaults("megatron");
  spec.hysteresis = 1;
  spec.min_scale = 0;
  spec.backoff_factor = 0.1;
  spec.init_scale = 9;
  CHECK(after(spec, "x").scale == 9.0f * 0.1f);
  LossScaleSpec flax = defaults("flax");
  flax.backoff_factor = 0.1;
  flax.init_scale = 9;
  CHECK(after(flax, "x").scale == 9.0f * 0.1f);
  LossScaleSpec apex = defaults("apex");
  apex.growth_factor = 3;
  apex.init_scale = 1;
  CHECK(after(apex, "x").scale == 1.0 / 3);
}

TEST_CASE("torch-dynamic has no minimum: 166 halvings from 2^16 give zero; apex needs 1091") {
  CHECK(after(defaults("torch-dynamic"), std::string(165, 'x')).scale == 0x1p-149);
  CHECK(after(defaults("torch-dynamic"), std::string(166, 'x')).scale == 0);
  CHECK(after(defaults("apex"), std::string(1090, 'x')).scale == 0x1p-1074);
  CHECK(after(defaults("apex"), std::string(1091, 'x')).scale == 0);
}

TEST_CASE("growth to infinity: torch-dynamic skips it, flax stops at FLT_MAX, keras allows it") {
  for (const char* kind : {"torch-dynamic", "flax", "keras"}) {
    LossScaleSpec spec = defaults(kind);
    spec.init_scale = 0x1p127;
    spec.growth_interval = 1;
    const LossScaleState state = after(spec, std::string_view(kind) == "flax" ? ".." : ".");
    CAPTURE(kind);
    if (std::string_view(kind) == "torch-dynamic") CHECK(state.scale == 0x1p127);
    if (std::string_view(kind) == "flax") {
      CHECK(state.scale == static_cast<double>(std::numeric_limits<float>::max()));
    }
    if (std::string_view(kind) == "keras") CHECK(std::isinf(state.scale));
    CHECK(state.growth_tracker == 0);
  }
}

TEST_CASE("floors and caps: every dynamic scaler keeps to them") {
  for (const LossScaler& scaler : loss_scalers()) {
    if (!scaler.knows("min_scale")) continue;
    CAPTURE(scaler.name);
    LossScaleSpec spec = scaler.defaults;
    spec.init_scale = 64;
    spec.max_scale = 128;
    spec.min_scale = 16;
    spec.growth_interval = 1;
    spec.raise_at_min = false;
    CHECK(after(spec, std::string(20, '.')).scale == 128);
    const LossScaleState low = after(spec, std::string(20, 'x'));
    // fairseq stops training instead, with the last scale above its minimum.
    CHECK(low.raised == (scaler.name == "fairseq"));
    CHECK(low.scale == (low.raised ? 32 : 16));
    spec.init_scale = 1024;
    CHECK(after(spec, "").scale == 128);
  }
}

TEST_CASE("apex-fp16-utils and megatron: the minimum is 1") {
  CHECK(after(defaults("apex-fp16-utils"), std::string(40, 'x')).scale == 1);
  CHECK(after(defaults("megatron"), std::string(40, 'x')).scale == 1);
  CHECK_FALSE(after(defaults("megatron"), std::string(40, 'x')).raised);
}

// Three overflows among clean steps, before any growth: deepspeed and megatron count them all,
// consecutive_hysteresis forgets the first.
TEST_CASE("hysteresis: when each scaler refills it") {
  const std::string_view steps = "x.x.x";
  CHECK(after(defaults("megatron"), steps).scale == 0x1p32 / 4);
  LossScaleSpec spec = defaults("deepspeed");
  CHECK(after(spec, steps).scale == 65536 / 4);
  spec.consecutive_hysteresis = true;
  CHECK(after(spec, steps).scale == 65536);
  CHECK(after(spec, "xx").scale == 65536 / 2);
  spec.hysteresis = 1;
  CHECK(after(spec, "x").scale == 65536 / 2);
}

TEST_CASE("deepspeed stops training at its minimum, or stays there if raise_at_min is false") {
  LossScaleSpec spec = golden("deepspeed");
  spec.init_scale = 4;
  CHECK(trajectory(spec, 10, -1) == "2x 2x 1x 0x !");
  spec.raise_at_min = false;
  CHECK(trajectory(spec, 6, -1) == "2x 2x 1x 0x 0x 0x");
}

TEST_CASE("fairseq: the tolerance lets single overflows pass, the minimum stops training") {
  LossScaleSpec spec = golden("fairseq");
  spec.tolerance = 0.5;
  CHECK(after(spec, ".x").scale == 65536 / 2);    // 1 of 2 since the step before the first
  CHECK(after(spec, "..x").scale == 65536);       // 1 of 3
  CHECK(after(spec, "..xx").scale == 65536 / 2);  // 2 of 4
  spec = golden("fairseq");
  spec.init_scale = 4e-4;
  CHECK(after(spec, "x").scale == 2e-4);
  CHECK(after(spec, "xx").scale == 2e-4);  // 1e-4 is not above the minimum
  CHECK(after(spec, "xx").raised);
  spec.threshold = 2e-4;
  CHECK(after(spec, "xxxxx").scale == 2e-4);
  CHECK_FALSE(after(spec, "xxxxx").raised);
}

TEST_CASE("none: scale 1 whatever the specification says, and no check") {
  LossScaleSpec spec = defaults("none");
  spec.init_scale = 8;
  CHECK(after(spec, "") == LossScaleState{});
  CHECK(after(spec, "xx") == LossScaleState{});
  CHECK(find_loss_scaler("none").check == LossScaler::Check::kNone);
}

TEST_CASE("static keeps its scale but checks gradients") {
  LossScaleSpec spec = defaults("static");
  spec.init_scale = 128;
  CHECK(after(spec, "").scale == 128);
  CHECK(after(spec, "x.x") == after(spec, ""));
  CHECK(find_loss_scaler("static").check == LossScaler::Check::kScaled);
}

TEST_CASE("a state's fields carry all of it") {
  const std::string_view steps = "..x.xx..x....x";
  for (const LossScaler& scaler : loss_scalers()) {
    LossScaleSpec spec = scaler.defaults;
    spec.growth_interval = 2;
    LossScaleState copy;
    const LossScaleState state = after(spec, steps);
    for (const LossScaleField& field : loss_scale_fields()) field.set(copy, field.get(state));
    CAPTURE(scaler.name);
    CHECK(copy == state);
  }
}

// Every number that a row lists changes its trajectory, and no other number does.
TEST_CASE("a scaler reads the keys it lists and no others") {
  const std::string steps = std::string("x..x...xx....x.....xxx") + std::string(60, 'x') + "....";
  const auto path = [&](const LossScaleSpec& spec) {
    std::string text;
    for (size_t n = 0; n <= steps.size(); ++n) {
      const LossScaleState state = after(spec, steps.substr(0, n));
      text += std::to_string(std::log2(state.scale)) + (state.raised ? "! " : " ");
    }
    return text;
  };
  for (const LossScaler& scaler : loss_scalers()) {
    LossScaleSpec spec = scaler.defaults;
    spec.init_scale = 64;
    spec.growth_interval = 3;
    for (const LossScaleKey& key : loss_scale_keys()) {
      LossScaleSpec other = spec;
      struct Change {
        LossScaleSpec& spec;
        std::string_view name;
        void operator()(double LossScaleSpec::*member) {
          if (name == "max_scale")
            spec.*member = 16;
          else if (name == "tolerance")
            spec.*member = 0.9;
          else if (name == "backoff_factor")
            spec.*member = 0.25;
          else
            spec.*member = spec.*member + 3;
        }
        void operator()(int64_t LossScaleSpec::*member) { spec.*member += 1; }
        void operator()(bool LossScaleSpec::*member) { spec.*member = !(spec.*member); }
      };
      std::visit(Change{other, key.name}, key.member);
      CAPTURE(scaler.name);
      CAPTURE(key.name);
      CHECK((path(spec) != path(other)) == scaler.knows(key.name));
    }
  }
}

TEST_CASE("every scaler is found by its name, an unknown one is refused with a hint") {
  for (const LossScaler& scaler : loss_scalers()) {
    CHECK(&find_loss_scaler(scaler.name) == &scaler);
    CHECK(scaler.defaults.kind == scaler.name);
    CHECK_FALSE(scaler.help.empty());
    CHECK_FALSE(scaler.source.empty());
  }
  CHECK_THROWS_WITH_AS(find_loss_scaler("torch-dynamik"), doctest::Contains("torch-dynamic"),
                       InputError);
}
