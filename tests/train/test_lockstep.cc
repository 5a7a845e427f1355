// Whole runs of a small network: equal bits, resume, stopping, evaluation, refused options.
#include "emulation/kernels/active_kernels.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "tests/train/small_runs.h"

using namespace lockstep;

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

TEST_CASE("resuming from a checkpoint gives the bits of a run that was never stopped") {
  for (const LaneMode mode : {LaneMode::kFree, LaneMode::kSynced}) {
    for (const char* optimizer : {"sgd", "adam"}) {
      CAPTURE(optimizer);
      RunOptions options = small_run(kAllLanes, 5);
      options.mode = mode;
      options.optimizer.name = optimizer;
      options.optimizer.values["lr"] = optimizer == std::string("adam") ? 0.001 : 0.05;
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

TEST_CASE("stop ends after the step in progress, with a checkpoint to resume from") {
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

TEST_CASE("evaluation covers as many held-out examples as were trained on, or as asked") {
  RunOptions options = small_run({"fp32"}, 3);  // 40 are held out
  options.batch = 3;
  options.eval_every = 1;
  const auto counts = [&] {
    Recorder recorder;
    run(options, recorder);
    std::vector<int64_t> out;
    for (const EvaluationRecord& e : recorder.evaluations) out.push_back(e.example_count);
    return out;
  };
  CHECK(counts() == std::vector<int64_t>{3, 6, 9});
  options.accumulate = 7;
  CHECK(counts() == std::vector<int64_t>{21, 40, 40});
  options.accumulate = 1;
  options.workers = 3;  // of one example each
  CHECK(counts() == std::vector<int64_t>{3, 6, 9});
  options.eval_examples = 5;
  CHECK(counts() == std::vector<int64_t>{5, 5, 5});
}

TEST_CASE("evaluation covers every held-out example, whatever the batch size") {
  const auto evaluate = [](int64_t batch) {
    RunOptions options = small_run({"fp32", "fp64"}, 1);
    options.batch = batch;
    options.eval_examples = 1000;
    options.optimizer.values["lr"] = 0;  // constant weights: every run evaluates the same network
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
  // An untrained classifier of 10 classes is close to chance.
  CHECK(whole.loss[1] == doctest::Approx(std::log(10)).epsilon(0.1));
}

TEST_CASE("wrong options are refused together") {
  RunOptions options = small_run({"fp33", "tf32@cudda", "tf32", "tf32"}, 0);
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
         {"fp33", "cudda", "listed twice", "steps 0", "batch 0", "lenet", "synthetic", "sgd"}) {
      CAPTURE(part);
      CHECK(text.find(part) != std::string::npos);
    }
  }
  options = small_run({"fp32"}, 1);
  options.batch = 100000;
  CHECK_THROWS_WITH_AS(LockstepRun{options}, doctest::Contains("at most"), InputError);
}

TEST_CASE("one policy on one engine under two names is refused, and so is the reference's") {
  const auto error = [](std::vector<std::string> lanes) -> std::string {
    try {
      LockstepRun refused(small_run(std::move(lanes), 1));
    } catch (const InputError& refusal) {
      return refusal.what();
    }
    return "";
  };
  const auto says = [](const std::string& text, const std::string& part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  says(error({"tf32", "tf32:1"}), "lane 'tf32:1': the same as lane 'tf32', both are tf32:1 on");
  says(error({"tf32@software", "tf32"}), "lane 'tf32': the same as lane 'tf32@software'");
  says(error({"autocast", "torch-autocast-fp16"}), "both are torch-autocast-fp16:2.12 on software");
  // A fixed name is the lane's name on its own engine too: reports find lanes by name.
  says(error({"twin", "twin@software"}), "lane 'twin': listed twice");
  LockstepRun truth(small_run({"fp64@software"}, 1));
  CHECK(truth.description().lanes[1].name == "fp64");
  says(error({"fp32:1"}), "the reference always runs");
  // The twin's policy text is the reference's.
  CHECK(error({"fp32", "twin", "fp64", "tf32"}) == "");
  CHECK(error({"torch-autocast-fp16:2.11", "torch-autocast-fp16:2.12"}) == "");
}

TEST_CASE("a policy file's recorded text is used, and its problems name the file") {
  RunOptions options = small_run({"fp32", "gone/mine.toml"}, 1);
  const auto error = [&]() -> std::string {
    try {
      LockstepRun run(options);
      CHECK(run.description().lanes[1].policy.gemm_operand == &find_format("tf32"));
      CHECK(run.description().lanes[1].policy.name == "mine");
    } catch (const InputError& refusal) {
      return refusal.what();
    }
    return "";
  };
  CHECK(error().find("'gone/mine.toml': cannot be read") != std::string::npos);
  options.policy_texts["gone/mine.toml"] = "extends = 'tf32'\n";
  CHECK(error() == "");
  options.policy_texts["gone/mine.toml"] = "[storge]\n";
  CHECK(error().find("policy 'gone/mine.toml': line 1: storge") != std::string::npos);
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
