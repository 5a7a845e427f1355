// Lanes with scaled operands: checkpoints, synced mode, and that bits depend on neither threads nor
// instruction set.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/kernel_set.h"
#include "src/core/parallel.h"
#include "tests/train/small_runs.h"

namespace lockstep {
namespace {

const std::vector<std::string> kScaledLanes = {"fp32",  "fp8-delayed", "fp8-current",
                                               "mxfp8", "nvfp4",       "fp8-blockwise-torchao"};

}  // namespace

TEST_CASE("scaled lanes: same bits for every instruction set and thread count") {
  const std::string before(active_kernels().name);
  const int threads_before = thread_count();
  RunOptions options = small_run(kScaledLanes, 3);
  options.batch = 33;  // the last block along the rows is short
  std::vector<StepRecord> expected;
  RunState expected_state;
  int measured = 0;
  for (const KernelSet* set : available_kernel_sets()) {
    for (const int threads : {1, 3}) {
      CAPTURE(set->name);
      CAPTURE(threads);
      select_kernels(set->name);
      set_thread_count(threads);
      Recorder recorder;
      const RunState state = run(options, recorder);
      if (expected.empty()) {
        expected = recorder.steps;
        expected_state = state;
        continue;
      }
      for (size_t i = 0; i < expected.size(); ++i) {
        measured += check_same_step(expected[i], recorder.steps[i]);
      }
      check_same_state(expected_state, state);
    }
  }
  select_kernels(before);
  set_thread_count(threads_before);
  CHECK(measured > 500);
}

TEST_CASE("scaled lanes: sums that are formed block by block are compared with exact ones") {
  Recorder recorder;
  run(small_run({"fp32", "fp8-blockwise-torchao", "deepseek-v3"}, 1), recorder);
  const std::vector<LaneStep>& lanes = recorder.steps.at(0).lanes;
  constexpr uint64_t kSamples = 64;
  double worst[3] = {};
  int compared[3] = {};
  for (size_t l = 0; l < lanes.size(); ++l) {
    for (const SiteRecord& site : lanes[l].sites) {
      if (site.health.samples == 0) continue;
      CHECK(site.health.samples % kSamples == 0);
      CHECK(site.health.compared == site.health.samples);
      worst[l] = std::max(worst[l], site.health.err_max_share);
      ++compared[l];
    }
  }
  CHECK(compared[1] == compared[0]);
  CHECK(compared[2] == compared[0]);
  // Sums of fewer than 4096 products in FP32, and Hopper's, which keep 14 bits of the largest.
  constexpr double kFp32 = 0x1p-24 * 4096, kHopper = 0x1p-13 * 128;
  CHECK(worst[1] > 0);
  CHECK(worst[1] < kFp32);
  CHECK(worst[2] > 0x1p-18);
  CHECK(worst[2] < kHopper);
}

TEST_CASE("delayed scaling: checkpoints hold it, and evaluation does not change it") {
  RunOptions options = small_run({"fp32", "fp8-delayed"}, 6);
  options.checkpoint_every = 3;
  Recorder whole;
  const RunState end = run(options, whole);
  REQUIRE(whole.states.size() >= 2);
  int histories = 0;
  for (const auto& [name, tensor] : end.lanes[1].tensors) {
    if (!name.starts_with("scaling/")) continue;
    ++histories;
    CHECK(tensor.as<float>()[1] == 6);  // one amax per step
    CHECK_FALSE(tensor.same_bits(whole.states[0].lanes[1].tensors.at(name)));
  }
  CHECK(histories >= 6);
  LockstepRun resumed(options);
  resumed.restore(whole.states[0]);
  Recorder rest;
  check_same_state(end, run(resumed, rest));
  REQUIRE(rest.steps.size() == 3);
  check_same_step(whole.steps[5], rest.steps[2]);

  options.eval_every = 1;
  Recorder evaluated;
  check_same_state(end, run(options, evaluated));
  CHECK(evaluated.evaluations.size() == 6);
}

TEST_CASE("synced: delayed scaling is kept from step to step, the weights are not") {
  RunOptions options = small_run({"fp32", "fp8-delayed"}, 4);
  options.mode = LaneMode::kSynced;
  Recorder recorder;
  const RunState end = run(options, recorder);
  int histories = 0;
  for (const auto& [name, tensor] : end.lanes[1].tensors) {
    if (!name.starts_with("scaling/")) continue;
    ++histories;
    CHECK(tensor.as<float>()[1] == 4);
    CHECK(tensor.as<float>()[0] != 1);
  }
  CHECK(histories >= 6);
}

TEST_CASE(
    "scaled lanes learn what the reference learns; without a scale gradients become subnormal") {
  RunOptions options = small_run(kScaledLanes, 60);
  options.batch = 16;
  const std::string unit =
      write_policy("unit",
                   "extends = \"fp8-delayed\"\n[scaling]\nkind = \"unit\"\n"
                   "operand = \"fp8_e4m3+saturate\"\ngrad_operand = \"fp8_e5m2+saturate\"\n");
  options.lanes.push_back(unit);
  Recorder recorder;
  LockstepRun whole(options);
  run(whole, recorder);
  const auto mean_loss = [&](size_t lane, size_t from) {
    double sum = 0;
    for (size_t i = from; i < from + 10; ++i) sum += recorder.steps[i].lanes[lane].loss;
    return sum / 10;
  };
  const double start = mean_loss(0, 0), reference = mean_loss(0, 50);
  REQUIRE(reference < 0.5 * start);
  for (size_t lane = 1; lane < kScaledLanes.size(); ++lane) {
    CAPTURE(kScaledLanes[lane]);
    CHECK(mean_loss(lane, 50) < 0.6 * start);
    CHECK(mean_loss(lane, 50) != reference);
  }
  // Far more gradients lose digits without a scale.
  const auto lost = [&](size_t lane) {
    uint64_t small = 0;
    const auto& sites = recorder.description->sites->sites;
    for (const Site& site : sites) {
      if (site.point != Point::kOperand || !site.op.starts_with("linear_backward")) continue;
      for (const StepRecord& step : recorder.steps) {
        const TensorStats& stats = step.lanes[lane].sites[static_cast<size_t>(site.id)].stats;
        small += stats.to_zero + stats.to_subnormal;
      }
    }
    return small;
  };
  CHECK(lost(2) * 100 < lost(kScaledLanes.size()));
}

}  // namespace lockstep
