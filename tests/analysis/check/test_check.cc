// Planted defects: a recorded run is written a second time with one number changed on the way to
// the file, and the check must turn red and name the place. The untouched copy must be green.
#include "analysis/check/check.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "analysis/recommend/recommend.h"
#include "src/core/text.h"
#include "src/policy/find_policy.h"
#include "src/core/text_file.h"
#include "src/train/lockstep.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class TempDir {
 public:
  TempDir()
      : path_(fs::temp_directory_path() / ("lockstep_check_test." + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~TempDir() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

// Hands every record on to the writer, changed by `defect`.
class Tamper : public Observer {
 public:
  using Defect = std::function<void(StepRecord&)>;
  Tamper(RunFileWriter& writer, Defect defect) : writer_(writer), defect_(std::move(defect)) {}
  void on_start(const RunDescription& run) override { writer_.on_start(run); }
  void on_step(const StepRecord& step) override {
    StepRecord changed = step;
    if (defect_) defect_(changed);
    writer_.on_step(changed);
  }
  void on_evaluation(const EvaluationRecord& e) override { writer_.on_evaluation(e); }
  void on_checkpoint(const RunState& state) override { writer_.on_checkpoint(state); }
  void on_finish() override { writer_.on_finish(); }

 private:
  RunFileWriter& writer_;
  Defect defect_;
};

RunOptions small_run() {
  RunOptions options;
  options.model = "mlp";
  options.data = "synthetic:100";
  options.lanes = {"fp32", "torch-autocast-fp16", "pure-fp16"};
  options.steps = 3;
  options.batch = 8;
  return options;
}

RunFile record(const std::string& path, const RunOptions& options, Tamper::Defect defect = {}) {
  {
    LockstepRun run(options);
    RunFileWriter writer(path, "lockstep test", /*overwrite=*/true);
    Tamper tamper(writer, std::move(defect));
    run.add_observer(&tamper);
    const std::atomic<bool> stop{false};
    run.run(stop);
  }
  return RunFile(path);
}

// A site with something measured in lane 1, away from either end.
size_t some_site(const RunFile& run) {
  const std::vector<uint64_t> count = run.count(1, "count", 1);
  size_t site = count.size() / 2;
  while (count[site] == 0) ++site;
  return site;
}

TEST_CASE("the same run twice passes, however strictly") {
  const TempDir dir;
  const RunFile a = record(dir.file("a.h5"), small_run()),
                b = record(dir.file("b.h5"), small_run());
  const CheckResult result = check_runs(b, a, {.strict = true});
  CHECK(result.verdict == CheckVerdict::kPass);
  CHECK(result.groups.empty());
  CHECK(result.lanes.size() == 3);
  CHECK(result.steps == 3);
  CHECK(result.values > 10000);
}

TEST_CASE("a defect in the second loss's scaler is found") {
  const TempDir dir;
  RunOptions options = small_run();
  options.model = "detector", options.data = "shapes:50", options.sizes = {{"width", 4}};
  options.lanes = {"fp32", "apex-o1"};
  options.backward_per_loss = true;
  const RunFile base = record(dir.file("base.h5"), options);
  REQUIRE(base.scaler_columns(1) == 2);
  const RunFile run = record(dir.file("defect.h5"), options, [](StepRecord& step) {
    if (step.step == 1) step.lanes[1].scalers.at(1).growth_tracker += 1;
  });
  const CheckResult result = check_runs(run, base, {});
  CHECK(result.verdict == CheckVerdict::kRegression);
  REQUIRE(result.groups.size() == 1);
  CHECK(result.groups[0].rule == "loss_scale/growth_tracker");
  CHECK(result.first.step == 1);
  CHECK(check_runs(base, base, {}).verdict == CheckVerdict::kPass);
}

TEST_CASE("planted defects are found, and placed") {
  const TempDir dir;
  const RunFile base = record(dir.file("base.h5"), small_run());
  const size_t site = some_site(base);
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  struct Planted {
    std::string rule;
    std::function<void(LaneStep&)> defect;
    bool about_site;
  };
  const std::vector<Planted> planted = {
      {"bits_hash", [&](LaneStep& l) { l.sites[site].stats.bits_hash ^= 1; }, true},
      {"counts/to_zero", [&](LaneStep& l) { l.sites[site].stats.to_zero += 1; }, true},
      {"counts/nan", [&](LaneStep& l) { l.sites[site].stats.nan += 1; }, true},
      {"moments/sum_sq", [&](LaneStep& l) { l.sites[site].stats.sum_sq *= 1 + 1e-9; }, true},
      {"moments/sum_sq", [&](LaneStep& l) { l.sites[site].stats.sum_sq = kNan; }, true},
      {"scale", [&](LaneStep& l) { l.sites[site].scale *= 2; }, true},
      {"loss", [&](LaneStep& l) { l.loss += 1e-6; }, false},
      {"loss", [&](LaneStep& l) { l.loss = kNan; }, false},
      {"loss_scale/scale", [&](LaneStep& l) { l.scalers[0].scale /= 2; }, false},
      {"loss_scale/growth_tracker", [&](LaneStep& l) { l.scalers[0].growth_tracker += 1; }, false},
      {"loss_scale/skipped", [&](LaneStep& l) { l.scalers[0].skipped = true; }, false},
  };
  for (const Planted& p : planted) {
    CAPTURE(p.rule);
    const RunFile run = record(dir.file("defect.h5"), small_run(), [&](StepRecord& step) {
      if (step.step == 1) p.defect(step.lanes[1]);
    });
    const CheckResult result = check_runs(run, base, {});
    CHECK(result.verdict == CheckVerdict::kRegression);
    REQUIRE(result.has_first);
    CHECK(result.first.step == 1);
    CHECK(result.first.lane == "torch-autocast-fp16");
    CHECK(result.first.rule == p.rule);
    if (p.about_site) CHECK(result.first.subject == "site " + run.sites().sites[site].label());
    CHECK(result.first.run != result.first.baseline);
  }
}

TEST_CASE("a sum in another order passes, but not --strict") {
  const TempDir dir;
  const RunFile base = record(dir.file("base.h5"), small_run());
  const size_t site = some_site(base);
  const RunFile run = record(dir.file("defect.h5"), small_run(), [&](StepRecord& step) {
    double& sum = step.lanes[1].sites[site].stats.sum_sq;
    sum = std::nextafter(sum, 2 * sum);
  });
  CHECK(check_runs(run, base, {}).verdict == CheckVerdict::kPass);
  CHECK(check_runs(run, base, {.strict = true}).verdict == CheckVerdict::kRegression);
}

TEST_CASE("what is not about the same thing is never compared") {
  const TempDir dir;
  const RunFile base = record(dir.file("base.h5"), small_run());
  const auto verdict_of = [&](const std::function<void(RunOptions&)>& change) {
    RunOptions options = small_run();
    change(options);
    const RunFile run = record(dir.file("other.h5"), options);
    const CheckResult result = check_runs(run, base, {});
    if (result.verdict == CheckVerdict::kNothingComparable) CHECK(!result.not_comparable.empty());
    return result.verdict;
  };
  CHECK(verdict_of([](RunOptions& o) { o.seed = 2; }) == CheckVerdict::kNothingComparable);
  CHECK(verdict_of([](RunOptions& o) { o.batch = 4; }) == CheckVerdict::kNothingComparable);
  CHECK(verdict_of([](RunOptions& o) { o.model = "lenet"; }) == CheckVerdict::kNothingComparable);
  CHECK(verdict_of([](RunOptions& o) { o.optimizer.values["lr"] *= 2; }) ==
        CheckVerdict::kNothingComparable);
  CHECK(verdict_of([](RunOptions& o) { o.mode = LaneMode::kSynced; }) ==
        CheckVerdict::kNothingComparable);
  // One lane more, or more steps: nothing differs, but not everything has a baseline.
  CHECK(verdict_of([](RunOptions& o) { o.lanes.push_back("tf32"); }) ==
        CheckVerdict::kNothingComparable);
  CHECK(verdict_of([](RunOptions& o) { o.steps = 4; }) == CheckVerdict::kNothingComparable);
  // Something of the baseline is gone.
  CHECK(verdict_of([](RunOptions& o) { o.lanes.pop_back(); }) == CheckVerdict::kRegression);
  CHECK(verdict_of([](RunOptions& o) { o.steps = 2; }) == CheckVerdict::kRegression);
}

TEST_CASE("relative differences fail closed") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  CHECK(relative_difference(1, 1, 0) == 0);
  CHECK(relative_difference(1, 2, 0) == 0.5);
  CHECK(relative_difference(1, 2, 4) == 0.25);
  CHECK(relative_difference(1e-300, -1e-300, 0) == 2);
  CHECK(relative_difference(kNan, kNan, 0) == 0);
  CHECK(relative_difference(kInf, kInf, 0) == 0);
  CHECK(relative_difference(kInf, -kInf, 0) == kInf);
  CHECK(relative_difference(kNan, 1, 0) == kInf);
  CHECK(relative_difference(1, kNan, 0) == kInf);
  CHECK(relative_difference(1, kInf, kInf) == kInf);
}

TEST_CASE("the default tolerance is 2 gamma_n") {
  CHECK(CheckOptions::default_rel_tol() > 2 * 312 * 0x1p-53);
  CHECK(CheckOptions::default_rel_tol() < 2 * 313 * 0x1p-53);
}

TEST_CASE("a recommendation is a policy that a run accepts") {
  const TempDir dir;
  const RunFile run = record(dir.file("run.h5"), small_run());
  const Recommendation found = recommend(run, "fp16");
  CHECK(found.ranges.layers.size() >= 2);
  const std::string path = dir.file("policy.toml");
  write_text_file_atomically(path, found.policy);
  const Policy policy = find_policy(path);
  CHECK(policy.loss_scale.kind == "static");
  CHECK(policy.loss_scale.init_scale == std::ldexp(1.0, found.ranges.scale_exponent));
  RunOptions options = small_run();
  options.lanes = {"fp32", path};
  const RunFile verified = record(dir.file("verify.h5"), options);
  for (const ScalerRecord& s : verified.scalers(1)) CHECK_FALSE(s.skipped);
}

TEST_CASE("layers with a reason become fp32 rules") {
  RangeTable ranges;
  ranges.format = &find_format("fp16");
  ranges.scales = {.lo = 3, .hi = 9};
  ranges.scale_exponent = 7;
  ranges.layers.resize(2);
  ranges.layers[0].layer = "fc1";
  ranges.layers[1].layer = "fc2";
  ranges.layers[1].reason = "reaches 2^17";
  const Policy policy =
      parse_policy(policy_toml(find_policy("torch-autocast-fp16"), ranges, "a test"), "p.toml");
  REQUIRE(policy.rules.size() == 1);
  CHECK(policy.rules[0].layer == "fc2");
  CHECK(policy.rules[0].compute == &find_format("fp32"));
  CHECK(policy.loss_scale.init_scale == 128);
}

}  // namespace
}  // namespace lockstep
