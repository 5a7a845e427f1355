// The training loop around the optimizer: accumulation, clipping, groups, frozen layers, starting
// weights, Kahan and masters in a run, and that all of it resumes to the same bits.
#include <algorithm>
#include <cmath>
#include <optional>

#include "emulation/kernels/active_kernels.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/models/model.h"
#include "src/train/lane/lane.h"
#include "src/update/clip.h"
#include "src/update/parameter_groups.h"
#include "tests/train/small_runs.h"

using namespace lockstep;

namespace {

double distance(const Tensor& a, const Tensor& b) {
  const auto x = a.as<float>(), y = b.as<float>();
  double squares = 0;
  for (size_t i = 0; i < x.size(); ++i) squares += (double(x[i]) - y[i]) * (double(x[i]) - y[i]);
  return std::sqrt(squares);
}

Tensor vector_of(std::vector<float> values) {
  const int64_t count = static_cast<int64_t>(values.size());
  return Tensor::from<float>({count}, std::move(values));
}

// A run that uses everything at once.
RunOptions full_run() {
  const std::string kahan = write_policy(
      "kahan", "[storage]\nweight = \"bf16\"\n[optimizer]\nupdate_rounding = \"kahan\"\n");
  const std::string masters =
      write_policy("bf16_masters",
                   "[storage]\nweight = \"fp8_e4m3\"\n[optimizer]\nmaster_weights = true\n"
                   "master = \"bf16\"\nstate = \"bf16\"\nupdate_rounding = \"stochastic\"\n");
  RunOptions options = small_run({"fp32", "torch-autocast-fp16", kahan, masters, "fp64"}, 6);
  options.model = "lenet";
  options.accumulate = 2;
  options.clip_norm = 0.5;
  options.clip_value = 0.1;
  options.optimizer = {"rmsprop", {{"centered", 1}, {"momentum", 0.5}, {"lr", 1e-3}}};
  options.schedule = {"cosine", {{"warmup", 2}}};
  options.groups = {{"fc*", {"lion", {}}}, {"fc3", {"adamw", {{"amsgrad", 1}}}}};
  options.freeze = {"conv1"};
  options.eval_batch_norm = {"bn1"};
  options.eval_in_fp32 = true;
  options.checkpoint_every = 1;
  return options;
}

}  // namespace

TEST_CASE("accumulation: two micro-batches of 8 are one batch of 16, except for rounding") {
  Recorder parts, whole;
  RunOptions options = small_run({"fp32", "fp64"}, 3);
  options.accumulate = 2;
  const RunState a = run(options, parts);
  options.accumulate = 1;
  options.batch = 16;
  const RunState b = run(options, whole);
  for (size_t step = 0; step < 3; ++step) {
    const double x = parts.steps[step].lanes[1].loss, y = whole.steps[step].lanes[1].loss;
    CHECK(std::abs(x - y) <= 1e-12 * y);
  }
  int compared = 0;
  for (const auto& [name, tensor] : a.lanes[0].tensors) {
    CAPTURE(name);
    const Tensor& other = b.lanes[0].tensors.at(name);
    const Tensor zero(tensor.shape(), tensor.container());
    // Three steps of sums over 16 in another order.
    CHECK(distance(tensor, other) <= 3 * 16 * 0x1p-24 * (1 + distance(other, zero)));
    ++compared;
  }
  CHECK(compared == 12);  // weights and momenta of three layers
  CHECK(parts.steps[0].lanes[0].sites[0].stats.count ==
        whole.steps[0].lanes[0].sites[0].stats.count);  // merged over the micro-batches
}

TEST_CASE("clip: torch's coefficient, always multiplied") {
  Tensor a = vector_of({3, 0}), b = vector_of({0, 4});
  const Format* fp32 = &find_format("fp32");
  CHECK(clip_by_norm(active_kernels(), {{&a, fp32}, {&b, fp32}}, 1) == 5);
  const float coefficient = 1.0f / (5.0f + 1e-6f);
  CHECK(a.as<float>()[0] == 3 * coefficient);
  CHECK(b.as<float>()[1] == 4 * coefficient);
  Tensor small = vector_of({3});
  CHECK(clip_by_norm(active_kernels(), {{&small, fp32}}, 3) == 3);
  CHECK(small.as<float>()[0] == 0.99999964f * 3);  // as measured with torch
  CHECK(clip_by_norm(active_kernels(), {{&small, fp32}}, 10) > 0);
  CHECK(small.as<float>()[0] == 0.99999964f * 3);  // below the limit: times one
}

TEST_CASE("clip: other norms than the 2-norm") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Format *fp32 = &find_format("fp32"), *fp16 = &find_format("fp16");
  const auto norm_of = [&](double norm_type, std::vector<float> first, std::vector<float> second) {
    Tensor a = vector_of(first), b = vector_of(second);
    return clip_by_norm(active_kernels(), {{&a, fp32}, {&b, fp32}}, 1e9, norm_type);
  };
  CHECK(norm_of(kInf, {3, -7}, {5}) == 7);
  CHECK(norm_of(1, {3, -7}, {5}) == 15);
  CHECK(norm_of(0.5, {4, -1}, {16}) == 49);                          // (2 + 1 + 4)^2
  CHECK(std::abs(norm_of(3, {3, -4}, {5}) / 6 - 1) <= 8 * 0x1p-24);  // 27 + 64 + 125 = 6^3
  CHECK(norm_of(4, {1e10f}, {}) == kInf);                            // as torch: the power
  CHECK(std::isnan(norm_of(kInf, {std::nanf(""), 1}, {2})));
  CHECK(norm_of(kInf, {1, -std::numeric_limits<float>::infinity()}, {2}) == kInf);
  Tensor a = vector_of({2, -4});
  CHECK(clip_by_norm(active_kernels(), {{&a, fp32}}, 1, kInf) == 4);
  CHECK(a.as<float>()[1] == -4 * (1.0f / (4.0f + 1e-6f)));
  Tensor low = vector_of({2048, 1});
  CHECK(clip_by_norm(active_kernels(), {{&low, fp16}}, 1e4, 1) ==
        2048);  // 2049 is not an FP16 number
}

TEST_CASE("clip: by value keeps NaN and the sign") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Tensor g = vector_of({0.5f, -3, 3, nan});
  clip_by_value(active_kernels(), {{&g, &find_format("fp32")}}, 1);
  CHECK(g.as<float>()[0] == 0.5f);
  CHECK(g.as<float>()[1] == -1);
  CHECK(g.as<float>()[2] == 1);
  CHECK(std::isnan(g.as<float>()[3]));
}

TEST_CASE("clip in a run: the norm is recorded, unscaled, and the step is that much smaller") {
  RunOptions options = small_run({"fp32", "torch-autocast-fp16"}, 1);
  options.optimizer.values = {{"momentum", 0}, {"lr", 1}};
  options.clip_norm = 0.125;
  Recorder recorder;
  run(options, recorder);
  const LaneStep &fp32 = recorder.steps[0].lanes[0], &fp16 = recorder.steps[0].lanes[1];
  REQUIRE(fp32.gradient_norm > options.clip_norm);
  CHECK(std::abs(fp16.gradient_norm / fp32.gradient_norm - 1) < 0.01);
  double squares = 0;  // lr 1: the update is the clipped gradient
  for (const SiteRecord& site : fp32.sites) {
    if (site.update.measured) squares += site.update.stats.update_sq;
  }
  CHECK(std::sqrt(squares) == doctest::Approx(options.clip_norm).epsilon(1e-5));
  options.clip_norm = 0;
  Recorder without;
  run(options, without);
  CHECK(std::isnan(without.steps[0].lanes[0].gradient_norm));
}

TEST_CASE("frozen layers keep their bits, and batch_norm in evaluation mode keeps its statistics") {
  RunOptions options = small_run({"fp32"}, 3);
  options.model = "lenet";
  options.freeze = {"conv1", "bn1"};
  options.eval_batch_norm = {"bn1"};
  LockstepRun frozen(options);
  const RunState before = frozen.state();
  Recorder recorder;
  const RunState after = run(frozen, recorder);
  const auto stays = [&](const char* name) {
    return before.lanes[0].tensors.at(name).same_bits(after.lanes[0].tensors.at(name));
  };
  CHECK(stays("weight/conv1.weight"));
  CHECK(stays("weight/bn1.bias"));
  CHECK(stays("buffer/bn1.running_mean"));
  CHECK(!stays("weight/conv2.weight"));
  CHECK(!stays("buffer/bn2.running_mean"));
  CHECK(!after.lanes[0].tensors.contains("state/conv1.weight/0"));
  options.freeze = {"convv*"};
  CHECK_THROWS_WITH_AS(LockstepRun{options}, doctest::Contains("conv1, bn1"), InputError);
  options.freeze = {"*"};
  CHECK_THROWS_WITH_AS(LockstepRun{options}, doctest::Contains("no parameter is left"), InputError);
}

TEST_CASE("groups: each steps its own layers; the others are unaffected") {
  RunOptions options = small_run({"fp32"}, 2);
  options.groups = {{"fc2*", {"sgd", {{"lr", 0}}}}, {"fc3", {"lion", {{"lr", 0.25}}}}};
  options.schedule = {"linear", {{"steps", 4}}};
  LockstepRun grouped(options);
  const RunState before = grouped.state();
  Recorder recorder;
  const RunState after = run(grouped, recorder);
  const auto& w0 = before.lanes[0].tensors;
  const auto& w2 = after.lanes[0].tensors;
  CHECK(w0.at("weight/fc2.weight").same_bits(w2.at("weight/fc2.weight")));
  // Lion: +-1/4 in the first step, +-3/16 in the second.
  const float moved =
      w2.at("weight/fc3.bias").as<float>()[0] - w0.at("weight/fc3.bias").as<float>()[0];
  const double steps = std::abs(moved);
  CHECK((std::abs(steps - 0.4375) < 1e-6 || std::abs(steps - 0.0625) < 1e-6));
  CHECK(recorder.steps[1].lanes[0].lr == std::vector<double>{0.05 * 0.75, 0, 0.25 * 0.75});
  options.groups = {{"fc9", {"sgd", {}}}};
  CHECK_THROWS_WITH_AS(LockstepRun{options}, doctest::Contains("fc1, fc2, fc3"), InputError);
}

TEST_CASE("groups: parsing copies the run's numbers, unless the optimizer differs") {
  const OptimizerSpec base{"sgd", {{"momentum", 0.5}}};
  const ParameterGroup same_one = parse_group("fc*:lr=0.25", base);
  CHECK(same_one.layers == "fc*");
  CHECK(same_one.optimizer.values == HyperValues{{"lr", 0.25}, {"momentum", 0.5}});
  const ParameterGroup other = parse_group("fc*:lr=0.25,optimizer=adamw", base);
  CHECK(other.optimizer.name == "adamw");
  CHECK(other.optimizer.values == HyperValues{{"lr", 0.25}});
  CHECK_THROWS_WITH_AS(parse_group("fc*", base), doctest::Contains("LAYERS:"), InputError);
}

TEST_CASE("groups: the last glob that matches wins, over layers and whole names") {
  const std::vector<ParameterGroup> groups = {{"fc*", {"sgd", {}}}, {"fc1.bias", {"lion", {}}}};
  const auto group = [&](const char* name, const char* layer) {
    return group_of({name, {}, true, layer}, groups);
  };
  CHECK(group("conv1.weight", "conv1") == 0);
  CHECK(group("fc1.weight", "fc1") == 1);
  CHECK(group("fc1.bias", "fc1") == 2);
}

TEST_CASE("batch_norm in evaluation mode: only the layers named") {
  Graph graph = find_model("lenet").build({2, {1, 28, 28}, 10}, /*training=*/true);
  set_eval_batch_norm(graph, {"bn1"});
  for (const Node& node : graph.nodes) {
    if (node.op != "batch_norm") continue;
    CHECK(std::get<bool>(node.attributes.at("training")) == (node.layer != "bn1"));
  }
  REQUIRE(graph.mutations.size() == 2);
  CHECK(graph.mutations[0].buffer == "bn2.running_mean");
  CHECK_THROWS_WITH_AS(set_eval_batch_norm(graph, {"conv1"}), doctest::Contains("bn1, bn2"),
                       InputError);
}

TEST_CASE("batch_norm eps: of every layer, in training and in evaluation") {
  Graph graph = find_model("lenet").build({2, {1, 28, 28}, 10}, /*training=*/true);
  set_batch_norm_eps(graph, 0.25);
  int norms = 0;
  for (const Node& node : graph.nodes) {
    if (node.op != "batch_norm") continue;
    CHECK(std::get<double>(node.attributes.at("eps")) == 0.25);
    ++norms;
  }
  CHECK(norms == 2);
  CHECK_THROWS_WITH_AS(set_batch_norm_eps(graph, 0), doctest::Contains("0 < batch-norm-eps"),
                       InputError);
  const Model& model = find_model("mlp");
  Graph mlp = model.build({2, {1, 28, 28}, 10, complete_sizes(model, {})}, /*training=*/true);
  CHECK_THROWS_WITH_AS(set_batch_norm_eps(mlp, 1), doctest::Contains("'mlp' has no batch_norm"),
                       InputError);

  // A huge eps makes the normalised values vanish: every example has the same logits.
  RunOptions options = small_run({"fp32"}, 2);
  options.model = "lenet";
  options.optimizer.values = {{"lr", 1e-30}};
  Recorder own, huge;
  run(options, own);
  options.batch_norm_eps = 1e30;
  run(options, huge);
  REQUIRE(huge.evaluations.size() == 1);
  CHECK(huge.evaluations[0].loss[0] != own.evaluations[0].loss[0]);
  CHECK(huge.steps[0].lanes[0].loss != own.steps[0].lanes[0].loss);
}

TEST_CASE("kahan in a run follows FP32 more closely than rounding to nearest") {
  const std::string storage = "[storage]\nweight = \"bf16\"\n[optimizer]\nupdate_rounding = ";
  RunOptions options = small_run({"fp32", write_policy("nearest", storage + "\"nearest_even\"\n"),
                                  write_policy("with_kahan", storage + "\"kahan\"\n")},
                                 30);
  options.optimizer.values = {{"lr", 0.002}};
  Recorder recorder;
  const RunState state = run(options, recorder);
  const auto off = [&](size_t lane) {
    return distance(state.lanes[lane].tensors.at("weight/fc1.weight"),
                    state.lanes[0].tensors.at("weight/fc1.weight"));
  };
  CHECK(off(2) < 0.5 * off(1));
  CHECK(state.lanes[2].tensors.contains("kahan/fc1.weight"));
  CHECK(!state.lanes[1].tensors.contains("kahan/fc1.weight"));
}

TEST_CASE("kahan: a free lane keeps the rest, a synced one starts every step without it") {
  const std::string lane = write_policy(
      "kahan_rest", "[storage]\nweight = \"bf16\"\n[optimizer]\nupdate_rounding = \"kahan\"\n");
  RunOptions options = small_run({"fp32", lane}, 2);
  options.optimizer.values = {{"lr", 0.002}, {"momentum", 0}};
  options.schedule = {"step", {{"step_size", 1}, {"gamma", 0}}};  // the second step moves nothing
  for (const LaneMode mode : {LaneMode::kFree, LaneMode::kSynced}) {
    options.mode = mode;
    Recorder recorder;
    const RunState state = run(options, recorder);
    const auto rest = state.lanes[1].tensors.at("kahan/fc1.weight").as<float>();
    const auto zeros = std::ranges::count(rest, 0.0f);
    CAPTURE(zeros);
    CHECK((zeros == static_cast<int64_t>(rest.size())) == (mode == LaneMode::kSynced));
  }
}

TEST_CASE("masters in BF16 hold BF16 values, and the weights are rounded from them") {
  Recorder recorder;
  const RunState state = run(full_run(), recorder);
  const Tensor& master = state.lanes[3].tensors.at("master/conv2.weight");
  const Tensor& weight = state.lanes[3].tensors.at("weight/conv2.weight");
  int differ = 0;
  for (size_t i = 0; i < master.as<float>().size(); ++i) {
    const float m = master.as<float>()[i];
    CHECK(round_to_format(m, find_format("bf16"), Rounding::kNearestEven) == m);
    differ += m != weight.as<float>()[i];
  }
  CHECK(differ > 0);
}

TEST_CASE("everything at once resumes to the same bits, whatever the threads") {
  Recorder through;
  const RunState end = run(full_run(), through);
  REQUIRE(through.states.size() >= 3);
  LockstepRun resumed(full_run());
  resumed.restore(through.states[2]);
  Recorder rest;
  set_thread_count(1);
  check_same_state(run(resumed, rest), end);
  set_thread_count(2);
  REQUIRE(rest.steps.size() == 3);
  for (size_t i = 0; i < 3; ++i) CHECK(check_same_step(rest.steps[i], through.steps[i + 3]) > 100);
  CHECK(same(rest.evaluations.back().loss[2], through.evaluations.back().loss[2]));
}

TEST_CASE("starting weights: all lanes begin with them, and only a fitting model takes them") {
  Recorder recorder;
  const RunState trained = run(small_run({"fp32"}, 2), recorder);
  std::map<std::string, Tensor> start;
  for (const auto& [name, tensor] : trained.lanes[0].tensors) {
    if (name.starts_with("weight/")) start[name.substr(7)] = tensor;
  }
  RunOptions options = small_run({"fp32", "tf32"}, 2);
  options.start_from = "elsewhere";
  const RunState state = LockstepRun(options, &start).state();
  for (const LaneState& lane : state.lanes) {
    CHECK(lane.tensors.at("weight/fc1.weight").same_bits(start.at("fc1.weight")));
  }
  start.erase("fc2.bias");
  start["fc1.bias"] = vector_of({1, 2});
  try {
    LockstepRun refused(options, &start);
    FAIL("not refused");
  } catch (const InputError& error) {
    CHECK(error.problems().size() == 2);
  }
}

TEST_CASE("evaluation in FP32: a narrow lane's weights, without its arithmetic") {
  RunOptions options = small_run({"fp32", "pure-fp16"}, 1);
  options.optimizer.values = {{"lr", 0}};
  Recorder own, fp32;
  run(options, own);
  options.eval_in_fp32 = true;
  run(options, fp32);
  CHECK(own.evaluations[0].loss[0] == fp32.evaluations[0].loss[0]);
  CHECK(own.evaluations[0].loss[1] != fp32.evaluations[0].loss[1]);
}

TEST_CASE("several losses: each named one is recorded, their sum is trained on") {
  GraphBuilder b("two_losses");
  const Value x = b.input("x", {{4, 3}, ElementType::kFloat});
  const Value t = b.input("t", {{4, 2}, ElementType::kFloat});
  const Value y = b.linear("fc", x, 2);
  const Value near = b.op("mse_loss", {y, t}, {}, "near");
  const Value far = b.op("mse_loss", {b.relu("relu", y), t}, {}, "far");
  b.name_output("loss/near", near);
  b.name_output("loss/far", far);
  b.name_output("y", y);
  b.set_loss(b.op("add", {near, far}, {}, "loss"));
  const Graph graph = differentiate(b.finish());
  CHECK(loss_names(graph) == std::vector<std::string>{"far", "near"});
  const SiteTable sites = make_sites(graph, 1);
  RunOptions options;
  options.accumulate = 2;
  const LaneContext context = make_lane_context(graph, sites, options);
  Lane lane(context, describe_lane("fp32"), initial_state(find_model("mlp"), {}, graph, 1));
  LaneStep record;
  record.sites.resize(sites.sites.size());
  const Tensor target = Tensor::from<float>({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  for (int64_t micro = 0; micro < 2; ++micro) {
    Tensor input({4, 3}, Container::kF32);
    std::ranges::fill(input.as<float>(), static_cast<float>(micro + 1));
    const Batch batch = {{"x", input}, {"t", target}};
    lane.begin_micro_batch(0, micro, batch);
    for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
      lane.run_node(n, nullptr, record.sites);
    }
    lane.finish_micro_batch(micro, record);
  }
  lane.finish_step(nullptr, record);
  REQUIRE(record.losses.size() == 2);
  CHECK(record.losses[0] > 0);
  CHECK(record.losses[0] != record.losses[1]);
  CHECK(record.loss == doctest::Approx(record.losses[0] + record.losses[1]).epsilon(1e-6));
}

TEST_CASE("integer buffers: num_batches_tracked counts, averages, is kept and restored") {
  GraphBuilder b("counted");
  const Value x = b.input("x", {{2, 1}, ElementType::kFloat});
  const Value t = b.input("t", {{2, 1}, ElementType::kFloat});
  const Value y = b.linear("fc", b.batch_norm("bn", x, std::nullopt), 1);
  b.set_loss(b.op("mse_loss", {y, t}, {}, "loss"));
  const Graph graph = differentiate(b.finish());
  const SiteTable sites = make_sites(graph, 1);
  RunOptions options;
  options.accumulate = 3;
  const LaneContext context = make_lane_context(graph, sites, options);
  const auto initial = initial_state(find_model("mlp"), {}, graph, 1);
  for (const char* name : {"fp32", "fp64", "pure-fp16"}) {
    CAPTURE(name);
    Lane lane(context, describe_lane(name), initial), other(context, describe_lane(name), initial);
    LaneStep record;
    record.sites.resize(sites.sites.size());
    for (int64_t micro = 0; micro < 3; ++micro) {
      // The batches' means are 2, 4 and 6: averaged over all three, 4.
      const float mean = static_cast<float>(2 * micro + 2);
      const Batch batch = {{"x", Tensor::from<float>({2, 1}, {mean - 1, mean + 1})},
                           {"t", Tensor::from<float>({2, 1}, {0, 1})}};
      lane.begin_micro_batch(0, micro, batch);
      for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
        lane.run_node(n, nullptr, record.sites);
      }
      lane.finish_micro_batch(micro, record);
    }
    lane.finish_step(nullptr, record);
    const LaneState state = copy_of(lane.state());
    CHECK(state.tensors.at("buffer/bn.num_batches_tracked").as<int32_t>()[0] == 3);
    const Tensor mean = state.tensors.at("buffer/bn.running_mean").to(Container::kF64);
    CHECK(mean.as<double>()[0] == doctest::Approx(4).epsilon(1e-3));
    other.restore(state);
    CHECK(other.state().tensors.at("buffer/bn.num_batches_tracked")->as<int32_t>()[0] == 3);
    Lane synced(context, describe_lane(name), initial);
    synced.restart_from(lane, 1);
    CHECK(synced.state().tensors.at("buffer/bn.num_batches_tracked")->as<int32_t>()[0] == 3);
  }
}
