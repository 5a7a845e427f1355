// Data parallel runs: workers' batches, the sites of their all-reduce, and refused options.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <limits>

#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/text.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/models/model.h"
#include "src/train/lane/lane.h"
#include "src/train/prepared_run.h"
#include "src/update/all_reduce.h"
#include "tests/train/small_runs.h"

using namespace lockstep;

namespace {

// y = x w + b against t, float by float: with weights of zero every gradient is -2/N x^T t
// of the batch, and a step of SGD with lr = 1 leaves minus the gradient in the weight.
struct LinearStep {
  LinearStep(int64_t workers, std::vector<float> t) : targets(std::move(t)) {
    GraphBuilder b("linear");
    const Value x = b.input("x", {{2, 3}, ElementType::kFloat});
    const Value goal = b.input("t", {{2, 2}, ElementType::kFloat});
    b.set_loss(b.op("mse_loss", {b.linear("fc", x, 2), goal}, {}, "loss"));
    graph = differentiate(b.finish());
    options.workers = workers;
    options.optimizer.values = {{"lr", 1}, {"momentum", 0}};
    sites = make_sites(
        graph, [](const Parameter&) { return std::vector<Shape>(); }, workers);
  }

  Batch batch(int64_t k) const {
    const float at = static_cast<float>(k);
    return {{"x", Tensor::from<float>({2, 3}, {0.1f + at, 0.7f, -0.3f, 1.1f, 0.2f * at, 3.0f})},
            {"t", Tensor::from<float>({2, 2}, {targets[k], 0.3f, 0.1f, -targets[k]})}};
  }

  // Runs workers `first`, ..., `first` + W - 1 in one step; returns minus the gradient.
  std::map<std::string, Tensor> step(int64_t first, const std::string& policy = "fp32") {
    const LaneContext context = make_lane_context(graph, sites, options);
    std::map<std::string, Tensor> zero;
    for (const Parameter& p : graph.parameters) {
      zero[p.name] = Tensor(p.type.shape, Container::kF32);
      zero[p.name].fill_zero();
    }
    Lane lane(context, describe_lane(policy), zero);
    record = {};
    record.sites.resize(sites.sites.size());
    for (int64_t k = 0; k < options.workers; ++k) {
      const Batch mine = batch(first + k);
      lane.begin_micro_batch(0, 0, mine, k);
      for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
        lane.run_node(n, nullptr, record.sites);
      }
      lane.finish_micro_batch(0, record, k);
    }
    if (options.workers > 1) {
      lane.enter_all_reduce(nullptr, record);
      lane.all_reduce(nullptr, record);
    }
    lane.finish_step(nullptr, record);
    std::map<std::string, Tensor> weights;
    for (const Parameter& p : graph.parameters) {
      weights[p.name] = *lane.state().tensors.at("weight/" + p.name);
    }
    return weights;
  }

  std::vector<float> targets;
  RunOptions options;
  Graph graph;
  SiteTable sites;
  LaneStep record;
};

std::string problems_of(const RunOptions& options) {
  try {
    LockstepRun refused(options);
  } catch (const InputError& error) {
    return join(error.problems(), "\n");
  }
  return "";
}

// An FP16 all-reduce with a fixed loss scale.
std::string fp16_reduce(const std::string& name, double scale, const std::string& format,
                        const std::string& divide) {
  return write_policy(name,
                      "extends = \"torch-autocast-fp16:2.12\"\n[loss_scale]\nkind = "
                      "\"static\"\ninit_scale = " +
                          std::to_string(scale) + "\n[all_reduce]\nformat = \"" + format +
                          "\"\ndivide = \"" + divide + "\"\n");
}

}  // namespace

TEST_CASE("four workers: the mean of four gradients, added in the declared order") {
  const std::vector<float> targets = {0.9f, -1.3f, 2.7f, 0.77f};
  LinearStep alone(1, targets);
  std::vector<std::map<std::string, Tensor>> shares;  // of each worker, divided and negated
  for (int64_t k = 0; k < 4; ++k) {
    for (auto& [name, g] : shares.emplace_back(alone.step(k))) {
      for (float& x : g.as<float>()) x /= 4;
    }
  }
  const std::string tree_policy = write_policy("tree", "[all_reduce]\norder = \"tree\"\n");
  int differ = 0;
  for (const bool is_tree : {false, true}) {
    LinearStep together(4, targets);
    for (const auto& [name, weight] : together.step(0, is_tree ? tree_policy : "fp32")) {
      const auto at = [&, name = name](int64_t k, int64_t i) {
        return shares[static_cast<size_t>(k % 4)].at(name).as<float>()[i];
      };
      const int64_t chunk = (weight.size() + 3) / 4;
      for (int64_t i = 0; i < weight.size(); ++i) {
        const int64_t c = i / chunk;
        const float ring = ((at(c + 1, i) + at(c + 2, i)) + at(c + 3, i)) + at(c, i);
        const float tree = (at(0, i) + at(1, i)) + (at(2, i) + at(3, i));
        CAPTURE(name);
        CAPTURE(i);
        CHECK(weight.as<float>()[i] == (is_tree ? tree : ring));
        differ += ring != tree;
      }
    }
  }
  CHECK(differ > 0);
}

TEST_CASE("two workers are two micro-batches, bit for bit, without batch statistics") {
  Recorder parallel, serial;
  RunOptions options = small_run({"fp32", "fp64", "torch-autocast-fp16"}, 4);
  options.clip_norm = 0.5;
  options.workers = 2;
  const RunState a = run(options, parallel);
  options.workers = 1;
  options.accumulate = 2;
  options.batch /= 2;
  const RunState b = run(options, serial);
  check_same_state(a, b);
  for (size_t step = 0; step < 4; ++step) {
    for (size_t lane = 0; lane < 3; ++lane) {
      CHECK(parallel.steps[step].lanes[lane].loss == serial.steps[step].lanes[lane].loss);
    }
  }
}

TEST_CASE("sites of the all-reduce: one operand and one output per gradient, scaled") {
  LinearStep one(1, {}), four(4, {1, 2, 3, 4});
  CHECK(one.sites.find_all_reduce("fc.weight", Point::kOperand) == -1);
  CHECK(four.sites.sites.size() == one.sites.sites.size() + 4);
  const int32_t entering = four.sites.find_all_reduce("fc.weight", Point::kOperand);
  const int32_t reduced = four.sites.find_all_reduce("fc.weight", Point::kOutput);
  REQUIRE(entering >= 0);
  REQUIRE(reduced == entering + 1);
  const Site& site = four.sites.sites[static_cast<size_t>(entering)];
  CHECK(site.label() == "fc all_reduce grad_weight operand");
  CHECK(site.shape == Shape{4, 2, 3});
  CHECK(site.scaled);
  CHECK(four.sites.sites[static_cast<size_t>(site.feeds.at(0))].point == Point::kOutput);
  const int32_t update = four.sites.find_update("fc.weight", Role::kUpdate);
  CHECK(four.sites.sites[static_cast<size_t>(update)].feeds == std::vector<int32_t>{reduced});
  four.step(0);
  CHECK(four.record.sites[static_cast<size_t>(entering)].stats.count == 4 * 6);
  CHECK(four.record.sites[static_cast<size_t>(reduced)].stats.count == 6);
  CHECK(four.record.sites[static_cast<size_t>(reduced)].error.err_sq == 0);
}

TEST_CASE("64 workers: an FP16 sum overflows where FP32 does not; divided before, it underflows") {
  RunOptions options = small_run({"fp32", fp16_reduce("sum-fp16", 32768, "fp16", "after"),
                                  fp16_reduce("sum-fp32", 32768, "fp32", "after"),
                                  fp16_reduce("before-fp16", 32768, "fp16", "before"),
                                  fp16_reduce("unscaled", 1, "fp16", "before")},
                                 1);
  options.batch = options.workers = 64;
  LockstepRun lockstep_run(options);
  const SiteTable& sites = *lockstep_run.description().sites;
  Recorder recorder;
  run(lockstep_run, recorder);
  const auto& lanes = recorder.steps[0].lanes;
  CHECK(lanes[1].scalers[0].found_inf);
  CHECK(lanes[1].scalers[0].skipped);
  const Site& culprit = sites.sites[static_cast<size_t>(lanes[1].scalers[0].culprit_site)];
  CHECK(culprit.op == "all_reduce");
  CHECK(culprit.point == Point::kOutput);
  CHECK(lanes[1].sites[static_cast<size_t>(culprit.id)].stats.to_infinity > 0);
  for (const size_t lane : {2, 3, 4}) CHECK_FALSE(lanes[lane].scalers[0].found_inf);
  const int32_t entering = sites.find_all_reduce("fc1.weight", Point::kOperand);
  const auto lost = [&](size_t lane) {
    return lanes[lane].sites[static_cast<size_t>(entering)].stats.to_zero;
  };
  CHECK(lost(2) == 0);
  CHECK(lost(4) > 100);
  CHECK(lost(4) > 2 * lost(3));
  // The error is in units of a worker's share divided or not.
  const auto error = [&](size_t lane) {
    const ErrorStats& e = lanes[lane].sites[static_cast<size_t>(entering)].error;
    return e.err_sq / e.ref_sq;
  };
  CHECK(lanes[2].sites[static_cast<size_t>(entering)].scale == 32768 * 64);
  CHECK(lanes[3].sites[static_cast<size_t>(entering)].scale == 32768);
  CHECK(error(2) > 0.5 * error(3));  // not 64^2 times as large
  CHECK(error(2) < 2 * error(3));
}

TEST_CASE("batch_norm: each worker has its own statistics, worker 0's running ones are kept") {
  GraphBuilder b("counted");
  const Value x = b.input("x", {{2, 1}, ElementType::kFloat});
  const Value t = b.input("t", {{2, 1}, ElementType::kFloat});
  const Value y = b.linear("fc", b.batch_norm("bn", x), 1);
  b.set_loss(b.op("mse_loss", {y, t}, {}, "loss"));
  const Graph graph = differentiate(b.finish());
  RunOptions options;
  options.workers = 3;
  options.accumulate = 2;
  const SiteTable sites = make_sites(
      graph, [](const Parameter& p) { return std::vector<Shape>{p.type.shape}; }, 3);
  const LaneContext context = make_lane_context(graph, sites, options);
  Lane lane(context, describe_lane("fp32"), initial_state(find_model("mlp"), {}, graph, 1));
  LaneStep record;
  record.sites.resize(sites.sites.size());
  for (int64_t micro = 0; micro < 2; ++micro) {
    for (int64_t worker = 0; worker < 3; ++worker) {
      const float mean = static_cast<float>(10 * worker + micro + 1);
      const Batch batch = {{"x", Tensor::from<float>({2, 1}, {mean - 1, mean + 1})},
                           {"t", Tensor::from<float>({2, 1}, {0, 1})}};
      lane.begin_micro_batch(0, micro, batch, worker);
      for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
        lane.run_node(n, nullptr, record.sites);
      }
      lane.finish_micro_batch(micro, record, worker);
    }
  }
  // Worker 0 saw the means 1 and 2: 0.9 (0.9 * 0 + 0.1 * 1) + 0.1 * 2.
  const float mean = lane.state().tensors.at("buffer/bn.running_mean")->as<float>()[0];
  CHECK(mean == doctest::Approx(0.29).epsilon(1e-6));
}

TEST_CASE("workers with everything else resume to the same bits, whatever the threads") {
  RunOptions options =
      small_run({"fp32", "pure-fp16-stochastic", "torch-autocast-bf16", "fp64", "twin"}, 4);
  options.model = "lenet";
  options.workers = 4;
  options.accumulate = 2;
  options.checkpoint_every = 2;
  Recorder through, rest;
  const RunState end = run(options, through);
  LockstepRun resumed(options);
  resumed.restore(through.states.at(0));
  set_thread_count(1);
  check_same_state(run(resumed, rest), end);
  set_thread_count(2);
  REQUIRE(rest.steps.size() == 2);
  for (size_t i = 0; i < 2; ++i) CHECK(check_same_step(rest.steps[i], through.steps[i + 2]) > 100);
}

TEST_CASE("refused workers: an uneven batch, no worker, a common amax") {
  RunOptions options = small_run({"fp32", "fp8-delayed"}, 1);
  options.workers = 3;
  const std::string text = problems_of(options);
  CHECK(text.find("batch 8, workers 3: batch divisible by workers required") != std::string::npos);
  CHECK(text.find("lane 'fp8-delayed': delayed scaling with several workers") != std::string::npos);
  options.workers = 0;
  CHECK(problems_of(options).find("workers 0: at least 1 required") != std::string::npos);
}

TEST_CASE("workers of a policy: all lanes have them, and two numbers are refused") {
  const auto with = [](const std::vector<int>& workers) {
    std::vector<std::string> lanes = {"fp32"};
    std::map<std::string, std::string> texts;
    for (const int w : workers) {
      lanes.push_back(fmt::format("policies/{}.toml", w));
      texts[lanes.back()] = fmt::format("extends = 'pure-bf16'\n[all_reduce]\nworkers = {}\n", w);
    }
    RunOptions options = small_run(lanes, 1);
    options.policy_texts = texts;
    return options;
  };
  RunOptions options = with({4});
  CHECK(PreparedRun(options, nullptr).options.workers == 4);
  options.workers = 4;
  CHECK(PreparedRun(options, nullptr).options.workers == 4);
  options.workers = 2;
  CHECK(problems_of(options).find(
            "[all_reduce] workers = 4 and --workers 2: a run has one number") != std::string::npos);
  CHECK(problems_of(with({4, 2})).find("workers = 2 and lane 'policies/4.toml'") !=
        std::string::npos);
  CHECK(
      problems_of(with({5000})).find("[all_reduce] workers 5000: a whole number, 1 <= N <= 4096") !=
      std::string::npos);
  options = with({4});
  options.batch = 6;
  CHECK(problems_of(options).find("batch 6, workers 4: batch divisible") != std::string::npos);
}
