// Whole runs of a small network: equal bits, resume, synced mode, skipped steps, dead lanes.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "emulation/quantize.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/train/engines.h"
#include "src/train/lane.h"
#include "src/train/lockstep.h"

using namespace lockstep;

namespace {

class Recorder : public Observer {
 public:
  void on_start(const RunDescription& d) override { description = &d; }
  void on_step(const StepRecord& record) override { steps.push_back(record); }
  void on_evaluation(const EvaluationRecord& record) override { evaluations.push_back(record); }
  void on_checkpoint(const RunState& state) override { states.push_back(state); }
  void on_finish() override { ++finished; }

  const RunDescription* description = nullptr;
  std::vector<StepRecord> steps;
  std::vector<EvaluationRecord> evaluations;
  std::vector<RunState> states;
  int finished = 0;
};

RunOptions small_run(std::vector<std::string> lanes, int64_t steps) {
  RunOptions options;
  options.model = "mlp";
  options.data = "synthetic:200";
  options.lanes = std::move(lanes);
  options.steps = steps;
  options.batch = 8;
  return options;
}

// Runs to the end and returns the final state.
RunState run(LockstepRun& run, Recorder& recorder) {
  run.add_observer(&recorder);
  const std::atomic<bool> stop{false};
  REQUIRE(run.run(stop));
  return run.state();
}
RunState run(const RunOptions& options, Recorder& recorder) {
  LockstepRun lockstep_run(options);
  return run(lockstep_run, recorder);
}

bool same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

// Every number of two steps but the seconds; returns how many sites were compared.
int check_same_step(const StepRecord& a, const StepRecord& b) {
  int measured = 0;
  REQUIRE(a.step == b.step);
  REQUIRE(a.lanes.size() == b.lanes.size());
  for (size_t l = 0; l < a.lanes.size(); ++l) {
    const LaneStep &x = a.lanes[l], &y = b.lanes[l];
    CHECK(same(x.loss, y.loss));
    CHECK(x.scalers[0].scale == y.scalers[0].scale);
    CHECK(x.scalers[0].culprit_site == y.scalers[0].culprit_site);
    REQUIRE(x.sites.size() == y.sites.size());
    for (size_t s = 0; s < x.sites.size(); ++s) {
      REQUIRE(x.sites[s].measured == y.sites[s].measured);
      if (!x.sites[s].measured) continue;
      const TensorStats &p = x.sites[s].stats, &q = y.sites[s].stats;
      const ErrorStats &e = x.sites[s].error, &f = y.sites[s].error;
      bool equal = x.sites[s].scale == y.sites[s].scale;
      for (const Statistic& row : statistics()) {
        equal &= row.kind == StatisticKind::kCount ? row.count(p, e) == row.count(q, f)
                                                   : same(row.moment(p, e), row.moment(q, f));
      }
      equal &= p.bits_hash == q.bits_hash && p.exponent_histogram == q.exponent_histogram;
      if (!equal) {
        CAPTURE(a.step);
        CAPTURE(l);
        CAPTURE(s);
        FAIL_CHECK("records differ");
      }
      ++measured;
    }
    for (size_t s = 0; s < x.updates.size(); ++s) {
      CHECK(x.updates[s].measured == y.updates[s].measured);
      CHECK(x.updates[s].stats.stagnant == y.updates[s].stats.stagnant);
      CHECK(same(x.updates[s].stats.update_sq, y.updates[s].stats.update_sq));
    }
  }
  return measured;
}

void check_same_state(const RunState& a, const RunState& b) {
  REQUIRE(a.lanes.size() == b.lanes.size());
  for (size_t l = 0; l < a.lanes.size(); ++l) {
    CHECK(a.lanes[l].scale == b.lanes[l].scale);
    CHECK(a.lanes[l].growth_tracker == b.lanes[l].growth_tracker);
    CHECK(a.lanes[l].optimizer_step == b.lanes[l].optimizer_step);
    REQUIRE(a.lanes[l].tensors.size() == b.lanes[l].tensors.size());
    for (const auto& [name, tensor] : a.lanes[l].tensors) {
      CAPTURE(name);
      CHECK(tensor.same_bits(b.lanes[l].tensors.at(name)));
    }
  }
}

std::string write_policy(const std::string& name, const std::string& toml) {
  const std::string path = std::string(LOCKSTEP_BINARY_DIR) + "/test_lockstep_" + name + ".toml";
  std::ofstream(path) << "name = \"" << name << "\"\nversion = \"1\"\n" << toml;
  return path;
}

const std::vector<std::string> kAllLanes = {
    "fp32", "torch-autocast-fp16", "torch-autocast-bf16", "tf32", "pure-fp16", "fp64", "twin"};

}  // namespace

TEST_CASE("same bits for every instruction set and thread count") {
  const std::string before(active_kernels().name);
  const int threads_before = thread_count();
  for (const char* model : {"mlp", "lenet"}) {
    CAPTURE(model);
    RunOptions options = small_run(kAllLanes, 2);
    options.model = model;
    options.batch = 3;
    Recorder first;
    RunState first_state;
    for (const KernelSet* set : available_kernel_sets()) {
      for (const int threads : {1, 2, 5}) {
        CAPTURE(set->name);
        CAPTURE(threads);
        select_kernels(set->name);
        set_thread_count(threads);
        Recorder recorder;
        const RunState state = run(options, recorder);
        REQUIRE(recorder.steps.size() == 2);
        if (first.steps.empty()) {
          first = recorder;
          first_state = state;
          continue;
        }
        check_same_state(first_state, state);
        for (size_t s = 0; s < 2; ++s) {
          CHECK(check_same_step(first.steps[s], recorder.steps[s]) > 7 * 30);
        }
        for (size_t l = 0; l < kAllLanes.size(); ++l) {
          CHECK(same(first.evaluations[0].loss[l], recorder.evaluations[0].loss[l]));
        }
      }
    }
  }
  select_kernels(before);
  set_thread_count(threads_before);
}

TEST_CASE("going on from a checkpoint gives the bits of a run that was never stopped") {
  for (const LaneMode mode : {LaneMode::kFree, LaneMode::kSynced}) {
    for (const char* optimizer : {"sgd", "adam"}) {
      CAPTURE(optimizer);
      RunOptions options = small_run(kAllLanes, 5);
      options.mode = mode;
      options.optimizer.name = optimizer;
      options.optimizer.lr = optimizer == std::string("adam") ? 0.001 : 0.05;
      options.checkpoint_every = 3;
      options.eval_every = 2;
      Recorder whole;
      const RunState end = run(options, whole);
      REQUIRE(whole.states.size() == 2);  // after step 3 and at the end
      REQUIRE(whole.evaluations.size() == 3);
      CHECK(whole.finished == 1);

      LockstepRun resumed(options);
      resumed.restore(whole.states[0]);
      Recorder rest;
      check_same_state(end, run(resumed, rest));
      REQUIRE(rest.steps.size() == 2);
      for (size_t s = 0; s < 2; ++s) check_same_step(whole.steps[3 + s], rest.steps[s]);
      CHECK(rest.evaluations.size() == 2);
    }
  }
}

TEST_CASE("stop ends after the step in progress, with a checkpoint to go on from") {
  LockstepRun lockstep_run(small_run({"fp32"}, 5));
  Recorder recorder;
  lockstep_run.add_observer(&recorder);
  const std::atomic<bool> stop{true};
  CHECK_FALSE(lockstep_run.run(stop));
  CHECK(recorder.steps.size() == 1);
  REQUIRE(recorder.states.size() == 1);
  CHECK(recorder.states[0].steps_done == 1);
  CHECK(recorder.evaluations.empty());
  CHECK(recorder.finished == 1);
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
      quantize<float>(w.as<float>(), rounded.as<float>(), {&find_format("fp16")}, nullptr);
      const auto& lanes = recorder.steps[step].lanes;
      const auto hash = [&](size_t lane) { return lanes[lane].sites[site.id].stats.bits_hash; };
      const Format& fp64 = find_format("fp64");
      CHECK(hash(1) == observe<float>(std::as_const(rounded).as<float>(), fp64).bits_hash);
      const Tensor exact = w.to(Container::kF64);
      CHECK(hash(2) == observe<double>(exact.as<double>(), fp64).bits_hash);
      // The twin's weights are one ulp beside: all of them moved, none by more than 2 ulps (where
      // a binade begins, the ulp above is twice the one below).
      const ErrorStats& twin = lanes[3].sites[site.id].error;
      CHECK(twin.err_sq > 0);
      CHECK(twin.err_max_ulps <= 1);
      CHECK(hash(3) != hash(0));
      ++compared;
    }
  }
  CHECK(compared >= 3 * 6);  // three steps, weight and bias of three layers
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
    // The gradient of the logits is the first number that 2^40 drives out of FP16.
    const Site& culprit = sites.sites[scaler.culprit_site];
    CAPTURE(culprit.label());
    CHECK(culprit.layer == "fc3");
    CHECK(culprit.role == Role::kGradActivation);
    // A skipped step records updates of zero.
    const int32_t update = sites.find_update("fc1.weight", Role::kUpdate);
    const UpdateRecord& zero = recorder.steps[s].lanes[1].updates[update];
    CHECK(zero.measured);
    CHECK(zero.stats.count == 120 * 400);
    CHECK(zero.stats.update_sq == 0);
    CHECK(zero.stats.stagnant == 0);
    CHECK(zero.stats.weight_sq > 0);
    CHECK(recorder.steps[s].lanes[1].sites[update].stats.source_zero == 120 * 400);
    CHECK_FALSE(recorder.steps[s].lanes[0].scalers.at(0).skipped);
  }
  CHECK(end.lanes[1].scale == std::ldexp(1.0f, 37));
  CHECK(end.lanes[1].optimizer_step == 0);
  CHECK(end.lanes[0].optimizer_step == 3);
  int weights = 0, buffers = 0;
  for (const auto& [name, tensor] : start.lanes[1].tensors) {
    CAPTURE(name);
    const bool unchanged = tensor.same_bits(end.lanes[1].tensors.at(name));
    if (name.starts_with("buffer/")) {
      CHECK_FALSE(unchanged);  // the forward pass has happened
      ++buffers;
    } else {
      CHECK(unchanged);
      ++weights;
    }
  }
  CHECK(buffers == 4);
  CHECK(weights > 10);
}

TEST_CASE("a step skipped after one that was taken records updates of zero") {
  LockstepRun lockstep_run(small_run({"fp32", "torch-autocast-fp16"}, 2));
  const SiteTable& sites = *lockstep_run.description().sites;
  const int32_t update = sites.find_update("fc1.weight", Role::kUpdate);
  Recorder taken, skipped;
  RunState state = run(lockstep_run, taken);
  CHECK(taken.steps[1].lanes[1].updates[update].stats.update_sq > 0);
  state.steps_done = 1;
  state.lanes[1].scale = std::ldexp(1.0f, 40);
  lockstep_run.restore(state);
  run(lockstep_run, skipped);
  REQUIRE(skipped.steps[0].lanes[1].scalers[0].skipped);
  const LaneStep& lane = skipped.steps[0].lanes[1];
  CHECK(lane.updates[update].stats.update_sq == 0);
  CHECK(lane.sites[update].stats.source_zero == lane.sites[update].stats.count);
  CHECK(lane.sites[update].stats.sum_sq == 0);
}

TEST_CASE("synced: a lane that skips goes on with the reference's optimizer step count") {
  const std::string overflow = write_policy(
      "overflow_synced",
      "extends = \"torch-autocast-fp16:2.11\"\n[loss_scale]\ninit_scale = 1099511627776\n");
  RunOptions options = small_run({"fp32", overflow}, 3);
  options.mode = LaneMode::kSynced;
  options.optimizer.name = "adam";
  options.optimizer.lr = 0.001;
  Recorder recorder;
  const RunState end = run(options, recorder);
  CHECK(end.lanes[0].optimizer_step == 3);
  CHECK(end.lanes[1].optimizer_step == 2);            // the reference's before its last step
  CHECK(end.lanes[1].scale == std::ldexp(1.0f, 37));  // its own scaler goes on
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

TEST_CASE("master weights: the model weights are the masters, rounded") {
  const std::string masters =
      write_policy("masters", "[storage]\nweight = \"bf16\"\n[optimizer]\nmaster_weights = true\n");
  Recorder recorder;
  const RunState end = run(small_run({"fp32", masters}, 3), recorder);
  const auto& tensors = end.lanes[1].tensors;
  const Tensor& master = tensors.at("master/fc1.weight");
  Tensor rounded(master.shape(), Container::kF32);
  quantize<float>(master.as<float>(), rounded.as<float>(), {&find_format("bf16")}, nullptr);
  CHECK(rounded.same_bits(tensors.at("weight/fc1.weight")));
  CHECK_FALSE(rounded.same_bits(master));
  LockstepRun fresh(small_run({"fp32"}, 1));
  const SiteTable& sites = *fresh.description().sites;
  const auto& records = recorder.steps.back().lanes[1].sites;
  const SiteRecord& weight = records[sites.find_update("fc1.weight", Role::kWeight)];
  CHECK(weight.stats.inexact > 0);  // of the rounding from the masters
  CHECK(records[sites.find_update("fc1.weight", Role::kMasterWeight)].stats.inexact == 0);
}

TEST_CASE("a lane whose weights become non-finite takes five more steps and stops") {
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

TEST_CASE("evaluation covers every held-out example, whatever the batch size") {
  const auto evaluate = [](int64_t batch) {
    RunOptions options = small_run({"fp32", "fp64"}, 1);
    options.batch = batch;
    options.optimizer.lr = 0;  // the weights stay, so every run judges the same network
    Recorder recorder;
    run(options, recorder);
    REQUIRE(recorder.evaluations.size() == 1);
    return recorder.evaluations[0];
  };
  const EvaluationRecord whole = evaluate(8), rest = evaluate(7);  // 40: 5 x 8, 5 x 7 + 5
  CHECK(whole.steps_done == 1);
  CHECK(whole.example_count == 40);
  CHECK(whole.accuracy == rest.accuracy);
  const double correct = whole.accuracy[0] * 40;
  CHECK(std::fabs(correct - std::round(correct)) <= 1e-9);
  // FP64: a mean of 40 numbers about log(10), each from sums of at most 784 products.
  CHECK(std::fabs(whole.loss[1] - rest.loss[1]) <= 1000 * std::ldexp(1.0, -53) * whole.loss[1]);
  CHECK(std::fabs(whole.loss[0] - whole.loss[1]) <= 1000 * std::ldexp(1.0, -24) * whole.loss[1]);
  // An untrained classifier of 10 classes knows about nothing.
  CHECK(whole.loss[1] == doctest::Approx(std::log(10)).epsilon(0.1));
}

TEST_CASE("the fixed lanes are what they say") {
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
  CHECK_THROWS_WITH_AS(describe_lane("tf32@cuda"), doctest::Contains("not in this build"),
                       InputError);
  CHECK_THROWS_WITH_AS(describe_lane("tf32@hopper"), doctest::Contains("accumulators"), InputError);
  CHECK_THROWS_WITH_AS(describe_lane("tf32@hoper"), doctest::Contains("did you mean 'hopper'"),
                       InputError);
  CHECK(describe_lane("tf32@software").engine == "software");
  CHECK(describe_lane("tf32").engine == "software");
}

TEST_CASE("wrong options are refused together") {
  RunOptions options = small_run({"fp33", "tf32@cuda", "tf32", "tf32"}, 0);
  options.model = "lenett";
  options.data = "syntetic";
  options.optimizer.name = "sdg";
  options.batch = 0;
  try {
    LockstepRun refused(options);
    FAIL("not refused");
  } catch (const InputError& error) {
    const std::string text = error.what();
    for (const char* part :
         {"fp33", "cuda", "listed twice", "steps 0", "batch 0", "lenet", "synthetic", "sgd"}) {
      CAPTURE(part);
      CHECK(text.find(part) != std::string::npos);
    }
  }
  options = small_run({"fp32"}, 1);
  options.batch = 100000;
  CHECK_THROWS_WITH_AS(LockstepRun{options}, doctest::Contains("at most"), InputError);
}

TEST_CASE("a checkpoint of another run is refused") {
  LockstepRun mlp(small_run({"fp32"}, 2));
  RunOptions options = small_run({"fp32"}, 2);
  options.model = "lenet";
  LockstepRun lenet(options);
  CHECK_THROWS_WITH_AS(lenet.restore(mlp.state()), doctest::Contains("conv1.weight"), InputError);
  LockstepRun two(small_run({"fp32", "tf32"}, 2));
  CHECK_THROWS_WITH_AS(two.restore(mlp.state()), doctest::Contains("1 lanes"), InputError);
}
