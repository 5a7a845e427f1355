// A lane in a run: synced mode, the twin, skipped steps, masters, death, names and targets.
#include "src/train/lane/lane.h"

#include <algorithm>
#include <limits>
#include <set>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/cuda_devices.h"
#include "emulation/kernels/quantize.h"
#include "src/core/error.h"
#include "src/execute/engines.h"
#include "src/train/run_memory.h"
#include "tests/train/small_runs.h"

using namespace lockstep;

TEST_CASE("a policy's table [cuda] without '@cuda' gets a note") {
  const std::string text = "[cuda]\nsplit_k = false\n";
  const auto notes = [&](const char* name) { return describe_lane(name, &text).policy.notes; };
  CHECK(notes("own.toml") == std::vector<std::string>{"[cuda] has no effect without '@cuda'"});
  CHECK(notes("own.toml@hopper").size() == 1);
  CHECK(notes("own.toml@cuda-host").empty());
  const std::string as_usual = "[cuda]\nsplit_k = true\n";
  CHECK(describe_lane("own.toml", &as_usual).policy.notes.empty());
}

TEST_CASE("synced: each step starts from the reference's weights, rounded to the lane's storage") {
  RunOptions options = small_run({"fp32", "pure-fp16", "fp64", "twin"}, 4);
  options.mode = LaneMode::kSynced;
  options.checkpoint_every = 1;
  Recorder recorder;
  run(options, recorder);
  LockstepRun fresh(options);
  const SiteTable& sites = *fresh.description().sites;
  int compared = 0;
  for (size_t step = 1; step < recorder.steps.size(); ++step) {
    const auto& reference = recorder.states[step - 1].lanes[0].tensors;
    for (const Site& site : sites.sites) {
      if (site.role != Role::kWeight || site.point != Point::kOperand) continue;
      CAPTURE(site.label());
      const Tensor& w = reference.at("weight/" + site.value.substr(2));
      Tensor rounded(w.shape(), Container::kF32);
      quantize<float>(active_kernels(), w.as<float>(), rounded.as<float>(), {&find_format("fp16")},
                      nullptr);
      const auto& lanes = recorder.steps[step].lanes;
      const auto hash = [&](size_t lane) { return lanes[lane].sites[site.id].stats.bits_hash; };
      const Format& fp64 = find_format("fp64");
      CHECK(hash(1) ==
            observe<float>(active_kernels(), std::as_const(rounded).as<float>(), fp64).bits_hash);
      const Tensor exact = w.to(Container::kF64);
      CHECK(hash(2) == observe<double>(active_kernels(), exact.as<double>(), fp64).bits_hash);
      // The twin's weights are one ulp away (half an ulp downwards from the start of a binade).
      const ErrorStats& twin = lanes[3].sites[site.id].error;
      CHECK(twin.err_sq > 0);
      CHECK(twin.err_max_ulps <= 1);
      CHECK(hash(3) != hash(0));
      ++compared;
    }
  }
  CHECK(compared >= 3 * 6);  // three steps, weight and bias of three layers
}

TEST_CASE("twins move their weights by signs of their own") {
  Recorder recorder;
  run(small_run({"fp32", "twin", "twin2", "twin3"}, 1), recorder);
  const auto& lanes = recorder.steps.at(0).lanes;
  std::set<uint64_t> weights;  // the hash of a layer's weights in each lane
  const SiteTable sites = *LockstepRun(small_run({"fp32"}, 1)).description().sites;
  const auto site = std::ranges::find_if(sites.sites, [](const Site& s) {
    return s.role == Role::kWeight && s.point == Point::kOperand;
  });
  for (const LaneStep& lane : lanes) {
    weights.insert(lane.sites[static_cast<size_t>(site->id)].stats.bits_hash);
  }
  CHECK(weights.size() == 4);
}

TEST_CASE("free: the twin starts one ulp away and drifts further") {
  Recorder recorder;
  run(small_run({"fp32", "twin"}, 6), recorder);
  LockstepRun fresh(small_run({"fp32"}, 1));
  const SiteTable& sites = *fresh.description().sites;
  const int32_t site = sites.find_update("fc1.weight", Role::kWeight);
  REQUIRE(site >= 0);
  const double first = recorder.steps.front().lanes[1].sites[site].error.err_sq;
  CHECK(first > 0);
  CHECK(recorder.steps.back().lanes[1].sites[site].error.err_sq > first);
}

TEST_CASE("an overflowing loss scale skips the step, halves the scale and names the culprit") {
  const std::string overflow =
      write_policy("overflow",
                   "extends = \"torch-autocast-fp16:2.11\"\n[loss_scale]\ninit_scale = "
                   "1099511627776\n");  // 2^40
  RunOptions options = small_run({"fp32", overflow}, 3);
  options.model = "lenet";
  LockstepRun lockstep_run(options);
  const SiteTable& sites = *lockstep_run.description().sites;
  const RunState start = lockstep_run.state();
  Recorder recorder;
  const RunState end = run(lockstep_run, recorder);
  for (size_t s = 0; s < recorder.steps.size(); ++s) {
    const ScalerRecord& scaler = recorder.steps[s].lanes[1].scalers.at(0);
    CHECK(scaler.found_inf);
    CHECK(scaler.skipped);
    CHECK(scaler.scale == std::ldexp(1.0, 40 - static_cast<int>(s)));
    CHECK(scaler.growth_tracker == 0);
    REQUIRE(scaler.culprit_site >= 0);
    // The gradient of the log-probabilities, inside the loss, is the first number that 2^40
    // drives out of FP16.
    const Site& culprit = sites.sites[scaler.culprit_site];
    CAPTURE(culprit.label());
    CHECK(culprit.layer == "loss");
    CHECK(culprit.role == Role::kGradActivation);
    // A skipped step records zero updates.
    const int32_t update = sites.find_update("fc1.weight", Role::kUpdate);
    const UpdateRecord& zero = recorder.steps[s].lanes[1].sites[update].update;
    CHECK(zero.measured);
    CHECK(zero.stats.count == 120 * 400);
    CHECK(zero.stats.update_sq == 0);
    CHECK(zero.stats.stagnant == 0);
    CHECK(zero.stats.weight_sq > 0);
    CHECK(recorder.steps[s].lanes[1].sites[update].stats.source_zero == 120 * 400);
    CHECK_FALSE(recorder.steps[s].lanes[0].scalers.at(0).skipped);
  }
  CHECK(end.lanes[1].scalers.at(0).scale == std::ldexp(1.0f, 37));
  CHECK(end.lanes[1].optimizer_steps == std::vector<int64_t>{0});
  CHECK(end.lanes[0].optimizer_steps == std::vector<int64_t>{3});
  int weights = 0, buffers = 0;
  for (const auto& [name, tensor] : start.lanes[1].tensors) {
    CAPTURE(name);
    const bool unchanged = tensor.same_bits(end.lanes[1].tensors.at(name));
    if (name.starts_with("buffer/")) {
      CHECK_FALSE(unchanged);  // the step had a forward pass
      ++buffers;
    } else {
      CHECK(unchanged);
      ++weights;
    }
  }
  CHECK(buffers == 4);
  CHECK(weights > 10);
}

TEST_CASE("a step skipped after a taken one records zero updates") {
  LockstepRun lockstep_run(small_run({"fp32", "torch-autocast-fp16"}, 2));
  const SiteTable& sites = *lockstep_run.description().sites;
  const int32_t update = sites.find_update("fc1.weight", Role::kUpdate);
  Recorder taken, skipped;
  RunState state = run(lockstep_run, taken);
  CHECK(taken.steps[1].lanes[1].sites[update].update.stats.update_sq > 0);
  state.steps_done = 1;
  state.lanes[1].scalers.at(0).scale = std::ldexp(1.0f, 40);
  lockstep_run.restore(state);
  run(lockstep_run, skipped);
  REQUIRE(skipped.steps[0].lanes[1].scalers[0].skipped);
  const LaneStep& lane = skipped.steps[0].lanes[1];
  CHECK(lane.sites[update].update.stats.update_sq == 0);
  CHECK(lane.sites[update].stats.source_zero == lane.sites[update].stats.count);
  CHECK(lane.sites[update].stats.sum_sq == 0);
}

TEST_CASE("synced: a lane that skips continues with the reference's optimizer step count") {
  const std::string overflow = write_policy(
      "overflow_synced",
      "extends = \"torch-autocast-fp16:2.11\"\n[loss_scale]\ninit_scale = 1099511627776\n");
  RunOptions options = small_run({"fp32", overflow}, 3);
  options.mode = LaneMode::kSynced;
  options.optimizer.name = "adam";
  options.optimizer.values["lr"] = 0.001;
  Recorder recorder;
  const RunState end = run(options, recorder);
  CHECK(end.lanes[0].optimizer_steps == std::vector<int64_t>{3});
  CHECK(end.lanes[1].optimizer_steps ==
        std::vector<int64_t>{2});  // the reference's before its last step
  CHECK(end.lanes[1].scalers.at(0).scale == std::ldexp(1.0f, 37));  // its own scaler continues
}

TEST_CASE("a power-of-two loss scale that neither over- nor underflows changes no weight") {
  const std::string scaled =
      write_policy("scaled", "[loss_scale]\nkind = \"static\"\ninit_scale = 1024\n");
  Recorder recorder;
  const RunState end = run(small_run({"fp32", scaled}, 3), recorder);
  int compared = 0;
  for (const auto& [name, tensor] : end.lanes[0].tensors) {
    CAPTURE(name);
    CHECK(tensor.same_bits(end.lanes[1].tensors.at(name)));
    ++compared;
  }
  CHECK(compared >= 12);
  for (const SiteRecord& site : recorder.steps.back().lanes[1].sites) {
    if (site.measured) CHECK(site.error.err_sq == 0);  // lane / scale - reference
  }
}

TEST_CASE("master weights: a clip without effect does not round the unscaled gradients") {
  const std::string masters =
      write_policy("clipped_masters",
                   "[storage]\nweight = \"fp16\"\n[optimizer]\nmaster_weights = true\n"
                   "[loss_scale]\nkind = \"static\"\ninit_scale = 65536\n");
  RunOptions options = small_run({"fp32", masters}, 2);
  Recorder plain, clipped;
  const RunState free = run(options, plain);
  options.clip_norm = 1e9;
  const RunState bound = run(options, clipped);
  for (const auto& [name, tensor] : free.lanes[1].tensors) {
    CAPTURE(name);
    CHECK(tensor.same_bits(bound.lanes[1].tensors.at(name)));
  }
}

TEST_CASE("master weights: the model weights are the masters, rounded") {
  const std::string masters =
      write_policy("masters", "[storage]\nweight = \"bf16\"\n[optimizer]\nmaster_weights = true\n");
  Recorder recorder;
  const RunState end = run(small_run({"fp32", masters}, 3), recorder);
  const auto& tensors = end.lanes[1].tensors;
  const Tensor& master = tensors.at("master/fc1.weight");
  Tensor rounded(master.shape(), Container::kF32);
  quantize<float>(active_kernels(), master.as<float>(), rounded.as<float>(), {&find_format("bf16")},
                  nullptr);
  CHECK(rounded.same_bits(tensors.at("weight/fc1.weight")));
  CHECK_FALSE(rounded.same_bits(master));
  LockstepRun fresh(small_run({"fp32"}, 1));
  const SiteTable& sites = *fresh.description().sites;
  const auto& records = recorder.steps.back().lanes[1].sites;
  const SiteRecord& weight = records[sites.find_update("fc1.weight", Role::kWeight)];
  CHECK(weight.stats.inexact > 0);  // of the rounding from the masters
  CHECK(records[sites.find_update("fc1.weight", Role::kMasterWeight)].stats.inexact == 0);
}

TEST_CASE("a lane whose weights become non-finite runs five more steps and stops") {
  LockstepRun lockstep_run(small_run({"fp32", "pure-fp16"}, 10));
  RunState poisoned = lockstep_run.state();
  poisoned.steps_done = 1;
  poisoned.lanes[1].tensors.at("weight/fc2.bias").as<float>()[3] =
      std::numeric_limits<float>::quiet_NaN();
  lockstep_run.restore(poisoned);
  Recorder recorder;
  const RunState end = run(lockstep_run, recorder);
  REQUIRE(recorder.steps.size() == 9);
  for (const StepRecord& record : recorder.steps) {
    // Seen at the end of step 1; steps 2 to 6 are the five more.
    CHECK(record.lanes[1].alive == (record.step <= 6));
    CHECK(record.lanes[0].alive);
    if (record.step > 6) {
      for (const SiteRecord& site : record.lanes[1].sites) REQUIRE_FALSE(site.measured);
    }
  }
  CHECK(end.lanes[1].nonfinite_since == 1);
  CHECK(end.lanes[1].died_at == 7);
  CHECK(end.lanes[0].died_at == -1);
  REQUIRE(recorder.evaluations.size() == 1);
  CHECK(std::isnan(recorder.evaluations[0].accuracy[1]));
  CHECK(recorder.evaluations[0].accuracy[0] >= 0);
}

TEST_CASE("synced: a lane whose weights become non-finite every step continues") {
  // Without a check the overflowing gradients reach the weights; each step starts afresh.
  const std::string overflow = write_policy("overflow_unchecked", "extends = \"pure-fp16\"\n");
  RunOptions options = small_run({"fp32", overflow}, kStepsAfterNonfinite + 3);
  options.optimizer.values["lr"] = 1e9;  // beyond FP16: an infinite step in that lane
  for (const LaneMode mode : {LaneMode::kFree, LaneMode::kSynced}) {
    options.mode = mode;
    Recorder recorder;
    const RunState end = run(options, recorder);
    const bool synced = mode == LaneMode::kSynced;
    CAPTURE(synced);
    CHECK(recorder.steps.back().lanes[1].alive == synced);
    CHECK((end.lanes[1].died_at < 0) == synced);
  }
}

TEST_CASE("non-finite gradients are found and named even without a scaler that checks") {
  LockstepRun lockstep_run(small_run({"fp32", "pure-fp16"}, 2));
  RunState poisoned = lockstep_run.state();
  poisoned.lanes[1].tensors.at("weight/fc2.bias").as<float>()[3] =
      std::numeric_limits<float>::infinity();
  lockstep_run.restore(poisoned);
  Recorder recorder;
  const RunState end = run(lockstep_run, recorder);
  const ScalerRecord& scaler = recorder.steps[0].lanes[1].scalers.at(0);
  CHECK(scaler.found_inf);
  CHECK_FALSE(scaler.skipped);
  REQUIRE(scaler.culprit_site >= 0);
  CHECK(lockstep_run.description().sites->sites[scaler.culprit_site].layer == "fc2");
  CHECK(end.lanes[1].optimizer_steps == std::vector<int64_t>{2});
  CHECK(scaler.scale == 1);
  CHECK_FALSE(recorder.steps[0].lanes[0].scalers.at(0).found_inf);
  CHECK(recorder.steps[0].lanes[0].scalers.at(0).culprit_site == -1);
}

TEST_CASE("the roundings of optimizer states, updates and weights are counted") {
  RunOptions options = small_run({"fp32", "pure-fp16"}, 2);
  options.optimizer.name = "adam";
  options.optimizer.values["lr"] = 0.001;
  Recorder recorder;
  LockstepRun lockstep_run(options);
  run(lockstep_run, recorder);
  const SiteTable& sites = *lockstep_run.description().sites;
  const auto& records = recorder.steps[0].lanes[1].sites;
  const auto stats = [&](Role role, int state) {
    const int32_t site = sites.find_update("fc1.weight", role, state);
    REQUIRE(site >= 0);
    return records[site].stats;
  };
  CHECK(stats(Role::kOptimizerState, 1).to_zero > 0);  // exp_avg_sq underflows
  CHECK(stats(Role::kOptimizerState, 0).inexact > 0);
  CHECK(stats(Role::kUpdate, 0).inexact > 0);
  CHECK(stats(Role::kWeight, 0).inexact > 0);
  const auto& reference = recorder.steps[0].lanes[0].sites;
  for (const Site& site : sites.sites) {
    const bool of_optimizer = site.role == Role::kOptimizerState || site.role == Role::kUpdate;
    if (of_optimizer) CHECK(reference[site.id].stats.inexact == 0);
  }
}

TEST_CASE("the policy's rounding does not change tensors kept in FP32") {
  const std::string stochastic =
      write_policy("stochastic_fp32", "[storage]\nrounding = \"stochastic\"\n");
  Recorder recorder;
  const RunState end = run(small_run({"fp32", stochastic}, 2), recorder);
  for (const auto& [name, tensor] : end.lanes[0].tensors) {
    CAPTURE(name);
    CHECK(tensor.same_bits(end.lanes[1].tensors.at(name)));
  }
}

TEST_CASE("the lanes with fixed names are what their names say") {
  Recorder recorder;
  LockstepRun lockstep_run(small_run({"tf32", "fp64"}, 1));
  const auto& lanes = lockstep_run.description().lanes;
  REQUIRE(lanes.size() == 3);
  CHECK(lanes[0].name == "fp32");  // always run, always first
  CHECK(lanes[0].is_reference);
  CHECK_FALSE(lanes[1].is_reference);
  CHECK(lanes[1].name == "tf32");
  CHECK(lanes[2].policy.gemm_accumulator->format->is_fp64());
  const RunState state = lockstep_run.state();
  CHECK(state.lanes[2].tensors.size() >= 12);
  for (const auto& [name, tensor] : state.lanes[2].tensors) {
    CHECK(tensor.container() == Container::kF64);
  }
}

TEST_CASE("lane names") {
  CHECK(parse_lane_name("tf32@hopper").policy == "tf32");
  CHECK(parse_lane_name("tf32@hopper").target == "hopper");
  CHECK(parse_lane_name("torch-autocast-fp16:2.12").target.empty());
  CHECK(parse_lane_name("runs@home/my.toml").policy == "runs@home/my.toml");
  CHECK(parse_lane_name("runs@home/my.toml@cpu").target == "cpu");
  CHECK_THROWS_AS(parse_lane_name("@cpu"), InputError);
  CHECK_THROWS_AS(parse_lane_name("tf32@"), InputError);
}

TEST_CASE("targets this build cannot serve are refused, never emulated") {
  if (!why_no_gpu().empty()) {
    CHECK_THROWS_WITH_AS(describe_lane("tf32@cuda"), doctest::Contains(why_no_gpu().c_str()),
                         InputError);
  }
  for (const char* fixed : {"fp32@hopper", "fp32:1@hopper", "fp64@hopper", "twin@amx"}) {
    CHECK_THROWS_WITH_AS(describe_lane(fixed), doctest::Contains("leave '@"), InputError);
  }
  CHECK_THROWS_WITH_AS(describe_lane("tf32@hoper"), doctest::Contains("did you mean 'hopper'"),
                       InputError);
  CHECK_THROWS_WITH_AS(describe_lane("caf\xe9.toml"),
                       doctest::Contains("lane 'caf\\xe9.toml': the name must be UTF-8"),
                       InputError);
  CHECK(describe_lane("tf32@software").engine == "software");
  CHECK(describe_lane("tf32").engine == "software");
  CHECK(describe_lane("tf32@hopper").engine == "software");
  CHECK(describe_lane("tf32@hopper").policy.hardware == find_hardware("hopper"));
  CHECK(describe_lane("tf32").policy.hardware == nullptr);
}

TEST_CASE("warnings: of every group, in the lane's description, never of the FP64 lane") {
  RunOptions options = small_run({"fp32", "pure-fp16", "fp64"}, 1);
  options.groups = {{"fc1", {"adam", {}}}};
  LockstepRun lockstep_run(options);
  const auto& lanes = lockstep_run.description().lanes;
  CHECK(lanes[0].warnings.empty());
  REQUIRE(lanes[1].warnings.size() == 1);
  CHECK(lanes[1].warnings[0].starts_with("--group fc1: eps = 1e-08 is 0 in fp16"));
  options.groups = {{"fc1", {"adam", {{"eps", 0x1p-160}}}}};
  LockstepRun tiny(options);
  CHECK(tiny.description().lanes[0].warnings.size() == 1);
  CHECK(tiny.description().lanes[2].warnings.empty());
}

TEST_CASE("the memory that lanes will take is known before they have it") {
  for (const std::string lane :
       {"fp64", "torch-autocast-bf16", "apex-o2", "twin", "pure-bf16-kahan"}) {
    CAPTURE(lane);
    RunOptions options = small_run({"fp32", lane}, 1);
    options.model = "lenet";
    const auto state_bytes = [&] { return LockstepRun(options).description().memory.state_bytes; };
    const auto tensor_bytes = [&] {
      int64_t bytes = 0;
      for (const LaneState& of_lane : LockstepRun(options).state().lanes) {
        for (const auto& [name, tensor] : of_lane.tensors) {
          bytes += static_cast<int64_t>(tensor.bytes());
        }
      }
      return bytes;
    };
    options.measuring.on = false;  // no updates are kept
    const int64_t bare = state_bytes();
    const int64_t scratch = bare - tensor_bytes();  // a gradient, where a scale is taken out of it
    CHECK(scratch == (lane == "apex-o2" ? 4 * 120 * 400 : 0));
    options.clip_norm = 1;  // gradients are kept
    CHECK(state_bytes() > bare);
  }
}

TEST_CASE("a run that needs more memory than is free is refused, a close one warns") {
  const std::vector<LaneMemory> lanes = {
      {"fp32", 100 << 20}, {"low", 200 << 20}, {"twin", 300 << 20}};
  const auto check = [&](int64_t free) { return check_run_memory(lanes, 10 << 20, true, free); };
  CHECK(check(0).empty());
  CHECK(check(int64_t{800} << 20).empty());
  CHECK(check(int64_t{600} << 20)
            .starts_with("memory: 3 lanes of 10 485 760 parameters need at least "
                         "600 MiB (60 bytes per parameter: fp32 100 MiB"));
  CHECK_THROWS_WITH_AS(check((int64_t{600} << 20) - 1),
                       doctest::Contains("--lanes fp32,low --twins 0 needs 300 MiB;"), InputError);
}
