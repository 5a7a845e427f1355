// A backward pass per loss: it takes the whole loss's steps if nothing overflows, it has a scaler
// per loss if the policy keeps one, and it works with every other part of a step.
#include "src/train/loss_passes.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/models/model.h"
#include "src/train/lane/lane.h"
#include "tests/train/small_runs.h"

using namespace lockstep;

namespace {

RunOptions detector_run(std::vector<std::string> lanes, int64_t steps) {
  RunOptions options = small_run(std::move(lanes), steps);
  options.model = "detector";
  options.data = "shapes:50";
  options.sizes = {{"width", 4}};
  options.backward_per_loss = true;
  return options;
}

// All in FP32 but the heads' weight gradients: FP16, so that large scales overflow there.
const std::string kHeadsOverflow =
    "[[rule]]\nlayer = \"head.*\"\nrole = \"grad_weight\"\npoint = \"output\"\nformat = \"fp16\"\n";
// The same for one loss only.
const std::string kClassOverflows =
    "[[rule]]\nlayer = \"head.*.class\"\nrole = \"grad_weight\"\npoint = \"output\"\n"
    "format = \"fp16\"\n";

void check_same_weights(const RunState& a, size_t lane_a, const RunState& b, size_t lane_b) {
  int compared = 0;
  for (const auto& [name, tensor] : a.lanes.at(lane_a).tensors) {
    if (!name.starts_with("weight/")) continue;
    CAPTURE(name);
    CHECK(tensor.same_bits(tensor_of(b, lane_b, name)));
    ++compared;
  }
  CHECK(compared > 10);
}

// "24x 23 ...": log2 of the scale, x where this scaler's loss overflowed.
std::string trajectory(const Recorder& recorder, size_t lane, size_t scaler) {
  std::string text;
  for (const StepRecord& step : recorder.steps) {
    const ScalerRecord& s = step.lanes.at(lane).scalers.at(scaler);
    if (!text.empty()) text += ' ';
    text += std::to_string(static_cast<int>(std::log2(s.scale)));
    if (s.found_inf) text += 'x';
  }
  return text;
}

}  // namespace

TEST_CASE("in FP64 a pass per loss gives the steps of the whole loss's pass, to 1e-12") {
  for (const std::string model : {"detector", "vae"}) {
    CAPTURE(model);
    RunOptions options = detector_run({"fp32", "fp64"}, 3);
    if (model == "vae") {
      options.model = model, options.data = "synthetic:200";
      options.sizes = {{"hidden", 16}, {"latent", 4}};
      options.optimizer.values = {{"lr", 1e-4}};
    }
    Recorder parts, whole;
    const RunState separate = run(options, parts);
    options.backward_per_loss = false;
    const RunState joint = run(options, whole);
    int compared = 0;
    for (const auto& [name, tensor] : joint.lanes[1].tensors) {
      if (!name.starts_with("weight/") && !name.starts_with("state/")) continue;
      CAPTURE(name);
      const auto a = tensor.as<double>(), b = tensor_of(separate, 1, name).as<double>();
      double largest = 0, apart = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        largest = std::max(largest, std::fabs(a[i]));
        if (!(std::fabs(a[i] - b[i]) <= apart)) apart = std::fabs(a[i] - b[i]);  // NaN, too
      }
      CHECK(apart <= 1e-12 * largest);
      ++compared;
    }
    CHECK(compared > 10);
    CHECK(parts.steps[2].lanes[1].loss == doctest::Approx(whole.steps[2].lanes[1].loss));
  }
}

// Scales are powers of two and nothing leaves FP32's range: every lane's steps are the reference's.
TEST_CASE("shared or separate, micro-batches, workers: in FP32 the scales change no weight") {
  const std::string kind =
      "[loss_scale]\nkind = \"torch-dynamic\"\ninit_scale = 1024\n"
      "growth_interval = 2\n";
  const std::string shared = write_policy("losses_shared", kind);
  const std::string separate = write_policy("losses_separate", kind + "per_loss = \"separate\"\n");
  for (const auto& [accumulate, workers] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    CAPTURE(accumulate);
    CAPTURE(workers);
    RunOptions options = detector_run({"fp32", shared, separate}, 4);
    options.accumulate = accumulate;
    options.workers = workers;
    LockstepRun lockstep_run(options);
    const SiteTable& sites = *lockstep_run.description().sites;
    Recorder recorder;
    const RunState end = run(lockstep_run, recorder);
    REQUIRE(end.lanes[1].scalers.size() == 1);
    REQUIRE(end.lanes[2].scalers.size() == 2);
    CHECK(end.lanes[1].scalers[0].scale == 4096);
    check_same_weights(end, 0, end, 1);
    // Micro-batches of one loss are added up before the losses are: roundings differ from the
    // reference's, which adds them in order.
    const bool in_one_order = accumulate == 1 || workers > 1;
    if (in_one_order) check_same_weights(end, 0, end, 2);
    int scaled = 0, reduced = 0;
    for (const Site& site : sites.sites) {
      const SiteRecord& record = recorder.steps[2].lanes[2].sites[site.id];
      if (!record.measured || !site.scaled) continue;
      CAPTURE(site.label());
      CHECK(record.scale == 2048);
      if (in_one_order) CHECK(record.error.err_sq == 0);  // lane / scale - reference, by pass
      ++scaled;
      reduced += site.op == "all_reduce";
    }
    CHECK(scaled > 50);
    // Two sites for each sum: 12 parameters of the stages in both passes, 8 of the heads in one.
    CHECK(reduced == (workers > 1 ? 2 * (2 * 12 + 8) : 0));
  }
}

// By hand from apex/amp/scaler.py (halve on the loss's own overflow, double after growth_interval
// clean steps of it), with lr = 0, so that every step has the first one's gradients: the heads' fit
// FP16 up to scales of 2^24 (box) and 2^16 (class). The step is skipped while any overflows.
TEST_CASE("apex: golden trajectories of a scaler per loss") {
  const std::string apex =
      "[loss_scale]\nkind = \"apex\"\ninit_scale = 268435456\n"
      "growth_interval = 4\nmax_scale = inf\n";
  const std::string own = write_policy("apex_own", apex + kHeadsOverflow);
  const std::string shared =
      write_policy("apex_shared", apex + "per_loss = \"shared\"\n" + kHeadsOverflow);
  RunOptions options = detector_run({"fp32", own, shared}, 18);
  options.batch = 40;  // all training images: every step has the same batch
  options.optimizer.values = {{"lr", 0}};
  LockstepRun lockstep_run(options);
  const auto& lanes = lockstep_run.description().lanes;
  REQUIRE(lanes[1].scaler_losses.size() == 2);
  CHECK(lanes[1].scaler_losses[0] == "box");
  CHECK(lanes[1].scaler_losses[1] == "class");
  CHECK(lanes[2].scaler_losses.empty());
  Recorder recorder;
  const RunState end = run(lockstep_run, recorder);
  const std::string box = "28x 27x 26x 25x 24 24 24 24 25x 24 24 24 24 25x 24 24 24 24";
  const std::string of_class = "28x 27x 26x 25x 24x 23x 22x 21x 20x 19x 18x 17x 16 16 16 16 17x 16";
  CHECK(trajectory(recorder, 1, 0) == box);
  CHECK(trajectory(recorder, 1, 1) == of_class);
  CHECK(trajectory(recorder, 2, 0) == of_class);  // every overflow moves the shared scaler
  const Graph& graph = *lockstep_run.description().step_graph;
  const SiteTable& sites = *lockstep_run.description().sites;
  int64_t clean = 0;
  for (const StepRecord& step : recorder.steps) {
    const auto& scalers = step.lanes[1].scalers;
    for (const Site& site : sites.sites) {  // a site's values have its own pass's scale
      const SiteRecord& record = step.lanes[1].sites[site.id];
      if (!site.scaled || !record.measured) continue;
      const auto pass = static_cast<size_t>(graph.node(site.node).pass);
      if (record.scale == scalers[pass].scale) continue;
      CAPTURE(site.label());
      CHECK(record.scale == scalers[pass].scale);
    }
    REQUIRE(scalers.size() == 2);
    const bool any = scalers[0].found_inf || scalers[1].found_inf;
    CHECK(scalers[0].skipped == any);
    CHECK(scalers[1].skipped == any);
    clean += !any;
    for (const ScalerRecord& s : scalers) CHECK((s.culprit_site >= 0) == s.found_inf);
  }
  CHECK(end.lanes[1].optimizer_steps == std::vector<int64_t>{clean});
  CHECK(end.lanes[0].optimizer_steps == std::vector<int64_t>{18});
}

TEST_CASE("a loss's culprit is searched among its own sites, forward and backward") {
  const std::string scaler =
      "[loss_scale]\nkind = \"torch-dynamic\"\nper_loss = \"separate\"\n"
      "init_scale = 1073741824\n";
  const std::string one = write_policy("culprit_class", scaler + kClassOverflows);
  const std::string both = write_policy("culprits", scaler + kHeadsOverflow);
  LockstepRun lockstep_run(detector_run({"fp32", one, both}, 1));
  const Graph graph = *lockstep_run.description().step_graph;
  const SiteTable sites = *lockstep_run.description().sites;
  Recorder recorder;
  run(lockstep_run, recorder);
  for (const size_t lane : {1, 2}) {
    const auto& scalers = recorder.steps[0].lanes[lane].scalers;
    CHECK(scalers[0].found_inf == (lane == 2));  // box
    CHECK(scalers[0].skipped);
    CHECK(scalers[1].found_inf);
    for (size_t pass = 0; pass < 2; ++pass) {
      if (!scalers[pass].found_inf) {
        CHECK(scalers[pass].culprit_site == -1);
        continue;
      }
      const Site& site = sites.sites[static_cast<size_t>(scalers[pass].culprit_site)];
      CHECK(site.layer.ends_with(pass == 0 ? ".box" : ".class"));
      CHECK(graph.node(site.node).pass == static_cast<int>(pass));
    }
  }

  const auto of_pass = sites_of_passes(graph, sites);
  REQUIRE(of_pass.size() == 2);
  int shared = 0, alone[2] = {};
  for (const Site& s : sites.sites) {
    const bool box = of_pass[0][static_cast<size_t>(s.id)];
    const bool cls = of_pass[1][static_cast<size_t>(s.id)];
    CAPTURE(s.label());
    if (s.op == "optimizer") CHECK_FALSE((box || cls));
    if (s.layer.ends_with(".class")) CHECK_FALSE(box);
    if (s.layer.ends_with(".box")) CHECK_FALSE(cls);
    if (s.scaled) CHECK(box != cls);
    shared += box && cls;
    alone[0] += box && !cls;
    alone[1] += cls && !box;
  }
  CHECK(shared > 20);  // the stages' forward pass
  CHECK(alone[0] > 20);
  CHECK(alone[1] > 20);
}

TEST_CASE("skip = group with a scaler per loss: like several optimizers, each under both scalers") {
  const std::string policy =
      write_policy("losses_by_group",
                   "[loss_scale]\nkind = \"torch-dynamic\"\nper_loss = \"separate\"\n"
                   "init_scale = 1073741824\nskip = \"group\"\n" +
                       kClassOverflows);
  RunOptions options = detector_run({"fp32", policy}, 1);
  options.groups = {{"head.*.class", options.optimizer}};
  const RunState start = LockstepRun(options).state();
  Recorder recorder;
  const RunState end = run(options, recorder);
  CHECK(end.lanes[1].optimizer_steps == std::vector<int64_t>{1, 0});
  CHECK(end.lanes[1].scalers[0].scale == 1073741824);      // box
  CHECK(end.lanes[1].scalers[1].scale == 1073741824 / 2);  // class
  const auto& columns = recorder.steps[0].lanes[1].scalers;
  REQUIRE(columns.size() == 4);  // two scalers, two groups
  CHECK_FALSE(columns[2].skipped);
  CHECK(columns[3].skipped);
  CHECK(columns[3].culprit_site == columns[1].culprit_site);
  CHECK(columns[2].scale == 1);
  const std::string box = "weight/head.fine.box.weight", cls = "weight/head.fine.class.weight";
  CHECK(tensor_of(end, 1, box).same_bits(tensor_of(end, 0, box)));
  CHECK(tensor_of(end, 1, cls).same_bits(tensor_of(start, 1, cls)));
}

namespace {

// Weights w = v = 0 and two losses, (w - large)^2 and (w - small)^2, or (v - small)^2, with
// gradients -2 large and -2 small. Returns the lane's tensor `key` after one step of SGD: minus lr
// times the gradient.
struct TwoGoals {
  float large, small;
  double lr;
  std::string small_reads;  // "w" | "v"
};
float after_one_step(const std::string& policy, const TwoGoals& goals, const std::string& key,
                     bool joint = false) {
  GraphBuilder b("two_losses");
  const Value w = b.parameter("w", {1}), v = b.parameter("v", {1});
  std::vector<Value> losses;
  for (const char* name : {"large", "small"}) {
    const Value goal = b.input(name, {{1}, ElementType::kFloat});
    const bool reads_v = name == std::string("small") && goals.small_reads == "v";
    losses.push_back(b.op("mse_loss", {reads_v ? v : w, goal}, {}, name));
    b.name_output(std::string("loss/") + name, losses.back());
  }
  b.set_loss(b.op("add", losses, {}, "loss"));
  const Graph graph = joint ? differentiate(b.finish()) : differentiate_per_loss(b.finish());
  const SiteTable sites = make_sites(graph, 1);
  RunOptions options;
  options.backward_per_loss = !joint;
  options.optimizer.values = {{"lr", goals.lr}, {"momentum", 0}};
  const LaneContext context = make_lane_context(graph, sites, options);
  const Batch batch = {{"large", Tensor::from<float>({1}, {goals.large})},
                       {"small", Tensor::from<float>({1}, {goals.small})}};
  Lane lane(context, describe_lane(policy),
            {{"w", Tensor::from<float>({1}, {0})}, {"v", Tensor::from<float>({1}, {0})}});
  LaneStep record;
  record.sites.resize(sites.sites.size());
  lane.begin_micro_batch(0, 0, batch);
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    lane.run_node(n, nullptr, record.sites);
  }
  lane.finish_micro_batch(0, record);
  lane.finish_step(nullptr, record);
  return lane.state().tensors.at(key)->as<float>()[0];
}

}  // namespace

// Gradients -1 and -2^-12 are FP16 numbers, but their sum is not.
TEST_CASE("hand-checked: separate losses meet unscaled in the FP32 master, shared ones in FP16") {
  const auto master_after = [](const std::string& per_loss) {
    const std::string policy = write_policy("meets_" + per_loss,
                                            "extends = \"apex-o2:1\"\n[loss_scale]\n"
                                            "init_scale = 64\nper_loss = \"" +
                                                per_loss + "\"\n");
    return after_one_step(policy, {0.5f, 0x1p-13f, 1, "w"}, "master/w");
  };
  CHECK(master_after("separate") == 1 + 0x1p-12f);
  CHECK(master_after("shared") == 1);
}

// The gradient -2^-26 is not an FP16 number; 64 times it is, and so is 16 times it, the update.
TEST_CASE("hand-checked: without masters an unscaled gradient is a number of the weight's format") {
  const TwoGoals goals{0x1p-27f, 0.5f, 16, "v"};
  for (const std::string per_loss : {"separate", "shared"}) {
    CAPTURE(per_loss);
    const std::string scaler =
        "[loss_scale]\nkind = \"apex\"\ninit_scale = 64\nper_loss = \"" + per_loss + "\"\n";
    const std::string masters = "[optimizer]\nmaster_weights = true\n";
    const std::string storage = "[storage]\nweight = \"fp16\"\n";
    const std::string without = write_policy("unscaled_" + per_loss, storage + scaler);
    const std::string with =
        write_policy("unscaled_masters_" + per_loss, storage + masters + scaler);
    CHECK(after_one_step(without, goals, "weight/w") == 0);
    CHECK(after_one_step(with, goals, "weight/w") == 0x1p-22f);
    if (per_loss == "separate") continue;
    CHECK(after_one_step(without, goals, "weight/w", /*joint=*/true) == 0);
    CHECK(after_one_step(with, goals, "weight/w", /*joint=*/true) == 0x1p-22f);
  }
}

TEST_CASE("replay: only the scaler that overflowed moves between attempts") {
  const std::string policy =
      write_policy("losses_replay",
                   "[loss_scale]\nkind = \"torch-dynamic\"\nper_loss = \"separate\"\n"
                   "init_scale = 1073741824\nreplay = true\n" +
                       kClassOverflows);
  Recorder recorder;
  const RunState end = run(detector_run({"fp32", policy}, 1), recorder);
  const LaneStep& step = recorder.steps[0].lanes[1];
  CHECK(step.attempts > 3);
  CHECK(step.scalers[0].scale == 1073741824);
  CHECK(step.scalers[1].scale == std::ldexp(1.0, 30 - (step.attempts - 1)));
  CHECK_FALSE(step.scalers[1].skipped);
  CHECK(end.lanes[1].optimizer_steps == std::vector<int64_t>{1});
  CHECK(end.lanes[1].scalers[0].growth_tracker == 1);
}

TEST_CASE("clipping: the norm is of the losses' sum, each unscaled by its own scale") {
  const std::string policy =
      write_policy("losses_clip",
                   "[loss_scale]\nkind = \"torch-dynamic\"\nper_loss = \"separate\"\n"
                   "init_scale = 1024\n");
  RunOptions options = detector_run({"fp32", policy}, 2);
  options.clip_norm = 0.01;
  Recorder recorder;
  const RunState end = run(options, recorder);
  const auto& lanes = recorder.steps[0].lanes;
  CHECK(lanes[0].gradient_norm > 0.1);
  CHECK(lanes[1].gradient_norm == lanes[0].gradient_norm);
  check_same_weights(end, 0, end, 1);
}

TEST_CASE("a stopped run with a scaler per loss resumes as if it had not been stopped") {
  for (const LaneMode mode : {LaneMode::kFree, LaneMode::kSynced}) {
    const std::string policy = write_policy("losses_resume",
                                            "extends = \"apex-o1:1\"\n[loss_scale]\n"
                                            "init_scale = 16777216\ngrowth_interval = 2\n");
    RunOptions options = detector_run({"fp32", policy}, 10);
    options.mode = mode;
    Recorder whole, before, after;
    const RunState end = run(options, whole);
    CHECK(end.lanes[1].scalers.size() == 2);
    CHECK(end.lanes[1].scalers[0].scale != end.lanes[1].scalers[1].scale);
    options.steps = 4;
    const RunState middle = run(options, before);
    options.steps = 10;
    LockstepRun resumed(options);
    resumed.restore(middle);
    check_same_state(run(resumed, after), end);
    RunState one_scaler = middle;
    one_scaler.lanes[1].scalers.resize(1);
    CHECK_THROWS_WITH_AS(LockstepRun(options).restore(one_scaler),
                         doctest::Contains("1 loss scalers, this run has 2"), InputError);
  }
}

TEST_CASE("refused: separate scalers with one backward pass, passes of one loss") {
  const std::string policy = write_policy(
      "losses_refused", "[loss_scale]\nkind = \"torch-dynamic\"\nper_loss = \"separate\"\n");
  RunOptions options = detector_run({"fp32", policy}, 1);
  options.backward_per_loss = false;
  CHECK_THROWS_WITH_AS(
      LockstepRun{options},
      doctest::Contains("with one backward pass for all losses; --backward per-loss"), InputError);
  options = small_run({"fp32"}, 1);
  options.backward_per_loss = true;
  CHECK_THROWS_WITH_AS(LockstepRun{options}, doctest::Contains("named here: none"), InputError);
  // Clipping scaled gradients needs one scale; with one backward pass the same policy has it.
  const std::string clips = write_policy(
      "losses_clip", "extends = \"apex-o1:1\"\n[loss_scale]\nclip = \"before_unscale\"\n");
  options = detector_run({"fp32", clips}, 1);
  CHECK_THROWS_WITH_AS(LockstepRun{options}, doctest::Contains("a scaler for each loss"),
                       InputError);
  options.backward_per_loss = false;
  CHECK(LockstepRun(options).state().lanes[1].scalers.size() == 1);
  // apex keeps one per loss with several passes, and a single one otherwise.
  options = detector_run({"fp32", "apex-o1"}, 1);
  options.backward_per_loss = false;
  CHECK(LockstepRun(options).state().lanes[1].scalers.size() == 1);
  options.backward_per_loss = true;
  CHECK(LockstepRun(options).state().lanes[1].scalers.size() == 2);
  options.lanes = {"fp32", "torch-autocast-fp16", "fp16-optimizer-dynamic"};
  const RunState torch = LockstepRun(options).state();
  CHECK(torch.lanes[1].scalers.size() == 1);
  CHECK(torch.lanes[2].scalers.size() == 1);
}
