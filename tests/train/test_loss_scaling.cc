// A lane and its loss scale: replay, the order of clipping and unscaling, groups that skip on their
// own, division, scalers that stop training, resuming.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "src/train/lane/lane.h"
#include "tests/train/small_runs.h"

using namespace lockstep;

namespace {

const std::string kFp16 = "extends = \"torch-autocast-fp16:2.11\"\n[loss_scale]\n";

// FP32 but for the weight gradients of fc1, which are FP16 and overflow under large scales.
const std::string kFc1Overflows =
    "[[rule]]\nlayer = \"fc1\"\nrole = \"grad_weight\"\npoint = \"output\"\nformat = \"fp16\"\n";

// The tensors of two lanes' states: equal bits under every name.
void check_same_tensors(const LaneState& a, const LaneState& b) {
  REQUIRE(a.tensors.size() == b.tensors.size());
  CHECK(a.tensors.size() >= 12);
  for (const auto& [name, tensor] : a.tensors) {
    CAPTURE(name);
    CHECK(tensor.same_bits(b.tensors.at(name)));
  }
}

}  // namespace

TEST_CASE("replay: the batch is tried until it fits, and the step is that of the fitting scale") {
  for (const int64_t accumulate : {1, 2}) {
    CAPTURE(accumulate);
    RunOptions options =
        small_run({"fp32", write_policy("replays", kFp16 + "init_scale = "
                                                           "1099511627776\nreplay = true\n")},
                  2);
    options.model = "lenet";  // with buffers
    options.accumulate = accumulate;
    Recorder replayed, direct, alone;
    const RunState end = run(options, replayed);
    const LaneStep& first = replayed.steps[0].lanes[1];
    const ScalerRecord& scaler = first.scalers.at(0);
    CHECK(first.attempts > 3);
    CHECK(scaler.scale == std::ldexp(1.0, 40 - (first.attempts - 1)));
    CHECK_FALSE(scaler.found_inf);
    CHECK_FALSE(scaler.skipped);
    CHECK(replayed.steps[1].lanes[1].attempts == 1);
    CHECK(end.lanes[1].optimizer_steps == std::vector<int64_t>{2});
    CHECK(replayed.steps[0].lanes[0].attempts == 1);

    // A lane that begins with that scale takes the same two steps, buffers and records included.
    options.lanes = {
        "fp32",
        write_policy("fits", kFp16 + "init_scale = " + std::to_string(scaler.scale) + "\n")};
    check_same_tensors(end.lanes[1], run(options, direct).lanes[1]);
    options.lanes = {"fp32"};
    check_same_tensors(end.lanes[0], run(options, alone).lanes[0]);
    for (size_t s = 0; s < 2; ++s) {
      StepRecord step = replayed.steps[s];
      CHECK(check_same_step(step, direct.steps[s]) > 100);
      step.lanes.resize(1);
      CHECK(check_same_step(step, alone.steps[s]) > 100);
    }
  }
}

TEST_CASE("replay: delayed scaling forgets the attempts that overflowed") {
  const std::string delayed =
      "[scaling]\nkind = \"delayed\"\noperand = \"fp8_e4m3+saturate\"\n"
      "grad_operand = \"fp8_e5m2+saturate\"\namax_history = 8\n";
  RunOptions options = small_run(
      {"fp32", write_policy("replays_delayed",
                            kFp16 + "init_scale = 1099511627776\nreplay = true\n" + delayed)},
      3);
  Recorder replayed, direct;
  const RunState end = run(options, replayed);
  const LaneStep& first = replayed.steps[0].lanes[1];
  REQUIRE(first.attempts > 3);
  REQUIRE_FALSE(first.scalers.at(0).skipped);
  // A lane that begins with the fitting scale has exactly these amaxes.
  const std::string scale = std::to_string(first.scalers.at(0).scale);
  options.lanes = {"fp32",
                   write_policy("fits_delayed", kFp16 + "init_scale = " + scale + "\n" + delayed)};
  const RunState expected = run(options, direct);
  check_same_tensors(end.lanes[1], expected.lanes[1]);
  int histories = 0;
  for (const auto& [name, tensor] : end.lanes[1].tensors) {
    if (!name.starts_with("scaling/")) continue;
    ++histories;
    CHECK(tensor.as<float>()[1] == 3);  // one amax per step, however many attempts it took
  }
  CHECK(histories >= 6);
  for (size_t s = 0; s < 3; ++s) CHECK(check_same_step(replayed.steps[s], direct.steps[s]) > 50);
}

TEST_CASE("replay: at the limit the step is skipped") {
  const std::string policy = write_policy(
      "replays_twice", kFp16 + "init_scale = 1099511627776\nreplay = true\nreplay_limit = 3\n");
  Recorder recorder;
  const RunState end = run(small_run({"fp32", policy}, 1), recorder);
  const LaneStep& step = recorder.steps[0].lanes[1];
  CHECK(step.attempts == 3);
  CHECK(step.scalers[0].skipped);
  CHECK(step.scalers[0].scale == std::ldexp(1.0, 38));
  CHECK(end.lanes[1].scalers[0].scale == std::ldexp(1.0, 37));
  CHECK(end.lanes[1].optimizer_steps == std::vector<int64_t>{0});
}

// Powers of two: the clipped norm is exactly `scale` times as large, and so is the clipping.
TEST_CASE(
    "clipping scaled gradients shrinks the update by the scale; a loose limit changes nothing") {
  const std::string scaled = "[loss_scale]\nkind = \"static\"\ninit_scale = 1024\n";
  const std::string right = write_policy("clips_unscaled", scaled + "clip = \"after_unscale\"\n");
  const std::string wrong = write_policy("clips_scaled", scaled + "clip = \"before_unscale\"\n");
  RunOptions options = small_run({"fp32", right, wrong}, 1);
  options.clip_norm = 1e9;
  Recorder loose, tight;
  const RunState free = run(options, loose);
  check_same_tensors(free.lanes[1], free.lanes[2]);
  const auto& norms = loose.steps[0].lanes;
  CHECK(norms[1].gradient_norm == norms[0].gradient_norm);
  CHECK(norms[2].gradient_norm == 1024 * norms[0].gradient_norm);

  options.clip_norm = norms[0].gradient_norm / 4;
  LockstepRun lockstep_run(options);
  const int32_t site = lockstep_run.description().sites->find_update("fc1.weight", Role::kUpdate);
  run(lockstep_run, tight);
  const auto update_sq = [&](size_t lane) {
    return tight.steps[0].lanes[lane].sites[site].update.stats.update_sq;
  };
  CHECK(update_sq(1) == update_sq(0));
  // The coefficient is 1024 times smaller up to torch's guard of 1e-6 and a few roundings.
  CHECK(update_sq(2) / update_sq(0) == doctest::Approx(std::ldexp(1.0, -20)).epsilon(1e-4));
}

TEST_CASE("skip = group: one group's overflow skips its own step and moves the shared scale") {
  const std::string scale = "[loss_scale]\nkind = \"torch-dynamic\"\ninit_scale = 1099511627776\n";
  const std::string by_group =
      write_policy("skips_group", scale + "skip = \"group\"\n" + kFc1Overflows);
  const std::string by_step = write_policy("skips_step", scale + kFc1Overflows);
  RunOptions options = small_run({"fp32", by_group, by_step}, 1);
  options.groups = {{"fc1", options.optimizer}};
  const RunState start = LockstepRun(options).state();
  Recorder recorder;
  const RunState end = run(options, recorder);
  CHECK(end.lanes[1].optimizer_steps == std::vector<int64_t>{1, 0});
  CHECK(end.lanes[2].optimizer_steps == std::vector<int64_t>{0, 0});
  for (const size_t lane : {1, 2}) {
    CHECK(end.lanes[lane].scalers.at(0).scale == std::ldexp(1.0, 39));
    CHECK(tensor_of(end, lane, "weight/fc1.weight")
              .same_bits(tensor_of(start, lane, "weight/fc1.weight")));
    CHECK(recorder.steps[0].lanes[lane].scalers[0].found_inf);
    CHECK(recorder.steps[0].lanes[lane].scalers[0].skipped);
  }
  // FP32 throughout, scaled by a power of two: the step that is taken is the reference's.
  CHECK(tensor_of(end, 1, "weight/fc2.weight").same_bits(tensor_of(end, 0, "weight/fc2.weight")));
  CHECK_FALSE(
      tensor_of(end, 1, "weight/fc2.weight").same_bits(tensor_of(start, 1, "weight/fc2.weight")));
  CHECK(tensor_of(end, 2, "weight/fc2.weight").same_bits(tensor_of(start, 2, "weight/fc2.weight")));
  const auto& columns = recorder.steps[0].lanes[1].scalers;
  REQUIRE(columns.size() == 3);  // the scaler, then the groups
  CHECK_FALSE(columns[1].found_inf);
  CHECK_FALSE(columns[1].skipped);
  CHECK(columns[1].culprit_site == -1);
  CHECK(columns[2].found_inf);
  CHECK(columns[2].skipped);
  CHECK(columns[2].culprit_site == columns[0].culprit_site);
  CHECK(recorder.steps[0].lanes[2].scalers.size() == 1);

  // Each is clipped separately: an infinite norm in one does not zero the other.
  options.clip_norm = 1e9;
  Recorder clipped;
  const RunState bound = run(options, clipped);
  CHECK(tensor_of(bound, 1, "weight/fc2.weight").same_bits(tensor_of(end, 1, "weight/fc2.weight")));
}

// Anything above zero becomes 0.5, the smallest number of fp4_e2m1. It is finite, but divided by
// 2^-130 it is not finite in FP32.
TEST_CASE("flax checks unscaled gradients, keras scaled ones") {
  const std::string tiny =
      "init_scale = 7.346839692639297e-40\n"  // 2^-130
      "min_scale = 0\n"
      "[[rule]]\nlayer = \"fc3\"\nrole = \"grad_weight\"\npoint = \"output\"\n"
      "format = \"fp4_e2m1\"\nrounding = \"up\"\n";
  const std::string flax =
      write_policy("judges_unscaled", "[loss_scale]\nkind = \"flax\"\n" + tiny);
  const std::string keras =
      write_policy("judges_scaled", "[loss_scale]\nkind = \"keras\"\n" + tiny);
  Recorder recorder;
  run(small_run({"fp32", flax, keras}, 1), recorder);
  CHECK(recorder.steps[0].lanes[1].scalers[0].skipped);
  CHECK_FALSE(recorder.steps[0].lanes[2].scalers[0].skipped);
}

TEST_CASE("keras divides by the scale, torch multiplies by its reciprocal") {
  const auto weights = [](const std::string& kind, const std::string& scale) {
    Recorder recorder;
    const std::string policy = write_policy(
        kind + scale, "[loss_scale]\nkind = \"" + kind + "\"\ninit_scale = " + scale + "\n");
    return run(small_run({"fp32", policy}, 1), recorder).lanes[1];
  };
  check_same_tensors(weights("keras", "4"), weights("torch-dynamic", "4"));
  const LaneState divided = weights("keras", "3"), multiplied = weights("torch-dynamic", "3");
  const auto a = divided.tensors.at("state/fc1.weight/0").as<float>();  // momentum = the gradient
  const auto b = multiplied.tensors.at("state/fc1.weight/0").as<float>();
  int64_t differ = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    differ += a[i] != b[i];
    // Two roundings of the reciprocal and the product against one of the quotient.
    CHECK(std::fabs(a[i] - b[i]) <= std::ldexp(std::fabs(a[i]), -22));
  }
  CHECK(differ > 0);
}

TEST_CASE("a scaler that stops training ends its lane in both modes, with the reason") {
  const std::string policy = write_policy(
      "stops",
      kFp16 + "kind = \"deepspeed\"\ninit_scale = 1099511627776\nmin_scale = 549755813888\n");
  for (const LaneMode mode : {LaneMode::kFree, LaneMode::kSynced}) {
    RunOptions options = small_run({"fp32", policy}, 5);
    options.mode = mode;
    Recorder recorder;
    const RunState end = run(options, recorder);
    // Hysteresis, the halving to the minimum, the overflow at the minimum.
    CHECK(end.lanes[1].died_at == 3);
    CHECK(end.lanes[1].died_of == DeathCause::kLossScaler);
    CHECK(end.lanes[0].died_of == DeathCause::kAlive);
    CHECK(recorder.steps[2].lanes[1].alive);
    CHECK(recorder.steps[2].lanes[1].scalers[0].skipped);
    CHECK_FALSE(recorder.steps[3].lanes[1].alive);
    CHECK(recorder.steps[3].lanes[1].died_of == DeathCause::kLossScaler);
  }
}

TEST_CASE("every scaler: a stopped run resumes as if it had not been stopped") {
  for (const LossScaler& scaler : loss_scalers()) {
    if (!scaler.knows("growth_interval")) continue;
    CAPTURE(scaler.name);
    const std::string policy =
        write_policy("resumes_" + std::string(scaler.name),
                     kFp16 + "kind = \"" + std::string(scaler.name) +
                         "\"\ninit_scale = 67108864\ngrowth_interval = 2\nmax_scale = inf\n");
    RunOptions options = small_run({"fp32", policy}, 16);
    Recorder whole, first, second;
    const RunState end = run(options, whole);
    int skips = 0, grows = 0;
    for (size_t s = 1; s < whole.steps.size(); ++s) {
      const ScalerRecord& now = whole.steps[s].lanes[1].scalers[0];
      skips += now.skipped;
      grows += now.scale > whole.steps[s - 1].lanes[1].scalers[0].scale;
    }
    CHECK(skips > 1);
    CHECK(grows > 0);
    for (const int64_t stop : {1, 4, 9}) {
      options.steps = stop;
      Recorder before, after;
      const RunState middle = run(options, before);
      options.steps = 16;
      LockstepRun resumed(options);
      resumed.restore(middle);
      check_same_state(run(resumed, after), end);
    }
  }
}

TEST_CASE("a layer's own loss scale: in FP32 it changes no weight, and the record shows it") {
  const std::string policy = write_policy("layer_scale",
                                          "[loss_scale]\nkind = \"static\"\ninit_scale = 16\n"
                                          "[[rule]]\nlayer = \"fc2\"\nloss_scale = 8\n");
  LockstepRun lockstep_run(small_run({"fp32", policy}, 2));
  const SiteTable& sites = *lockstep_run.description().sites;
  Recorder recorder;
  const RunState end = run(lockstep_run, recorder);
  check_same_tensors(end.lanes[0], end.lanes[1]);
  int scaled = 0;
  for (const Site& site : sites.sites) {
    const SiteRecord& record = recorder.steps[1].lanes[1].sites[site.id];
    if (!record.measured || !site.scaled) continue;
    CAPTURE(site.label());
    CHECK(record.scale == (site.layer == "fc2" ? 128 : 16));
    CHECK(record.error.err_sq == 0);  // lane / scale - reference
    scaled += site.layer == "fc2";
  }
  CHECK(scaled >= 4);
}

// Every gradient from the seed on is 1024 times as large, as with a loss scale of 1024.
TEST_CASE("the same loss scale on every layer is that loss scale") {
  const std::string base =
      "extends = \"torch-autocast-fp16:2.11\"\n[loss_scale]\nkind = \"static\"\n";
  const std::string layers = write_policy(
      "all_layers", base + "init_scale = 1\n[[rule]]\nlayer = \"*\"\nloss_scale = 1024\n");
  const std::string whole = write_policy("whole", base + "init_scale = 1024\n");
  const std::string none = write_policy("unscaled", base + "init_scale = 1\n");
  for (const char* model : {"mlp", "resnet20"}) {  // resnet20: gradients that join
    CAPTURE(model);
    RunOptions options = small_run({"fp32", layers, whole, none}, 2);
    options.model = model;
    Recorder recorder;
    const RunState end = run(options, recorder);
    check_same_tensors(end.lanes[1], end.lanes[2]);
    bool differs = false;
    for (const auto& [name, tensor] : end.lanes[3].tensors) {
      differs = differs || !tensor.same_bits(end.lanes[2].tensors.at(name));
    }
    CHECK(differs);
  }
}

TEST_CASE("a layer's own loss scale keeps that layer's small gradients from underflowing") {
  const std::string base =
      "extends = \"torch-autocast-fp16:2.11\"\n[loss_scale]\nkind = \"static\"\ninit_scale = 1\n";
  const std::string plain = write_policy("plain_layers", base);
  const std::string policy = write_policy(
      "scaled_layer", base + "[[rule]]\nlayer = \"fc1\"\nop = \"linear\"\nloss_scale = 4096\n");
  LockstepRun lockstep_run(small_run({"fp32", plain, policy}, 1));
  const SiteTable& sites = *lockstep_run.description().sites;
  Recorder recorder;
  run(lockstep_run, recorder);
  uint64_t subnormal[3] = {};
  for (const Site& site : sites.sites) {
    if (site.layer != "fc1" || site.role != Role::kGradWeight || site.point != Point::kOutput) {
      continue;
    }
    for (const size_t lane : {1, 2}) {
      const TensorStats& stats = recorder.steps[0].lanes[lane].sites[site.id].stats;
      subnormal[lane] += stats.to_zero + stats.to_subnormal;
    }
  }
  CHECK(subnormal[1] > 100);
  CHECK(subnormal[2] < subnormal[1] / 4);
}
