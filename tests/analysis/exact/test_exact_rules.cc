// The rules follow from the table of recorded quantities: none is missing, and each reads its own
// numbers.
#include "analysis/exact/exact_rules.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "analysis/exact/exact.h"
#include "tests/analysis/recorded_run.h"
#include "tests/record/run/columns.h"

namespace lockstep {
namespace {

using testing::record;
using testing::small_run;
using testing::TempDir;

const ExactRule& rule_named(const std::string& name) {
  return *std::ranges::find(exact_rules(), name, &ExactRule::name);
}

// The rule of the first difference, "" if there is none.
std::string first_rule(const RunFile& run, const RunFile& base, const ExactOptions& options = {}) {
  const ExactResult result = compare_exactly(run, base, options);
  return result.has_first ? result.first.rule : "";
}

TEST_CASE("every quantity to compare has its rule, and so has died_at") {
  std::set<std::string> wanted = {"died_at"}, found;
  for (const Quantity& q : quantities()) {
    if (q.comparison != Compared::kNone) wanted.insert(q.name);
  }
  for (const ExactRule& rule : exact_rules()) {
    CHECK(found.insert(rule.name).second);
    CHECK(!rule.help.empty());
    CHECK(rule.comparison != Compared::kNone);
  }
  CHECK(found == wanted);
  CHECK_FALSE(found.contains("seconds"));
}

TEST_CASE("a rule's scope says what its numbers belong to") {
  CHECK(rule_named("counts/to_zero").scope == Scope::kSite);
  CHECK(rule_named("updates/stagnant").scope == Scope::kSite);
  CHECK(rule_named("loss").scope == Scope::kStep);
  CHECK(rule_named("lr").scope == Scope::kStep);
  CHECK(rule_named("loss_scale/scale").scope == Scope::kStep);
  CHECK(rule_named("gradient_norms").scope == Scope::kParameter);
  CHECK(rule_named("exponent_histogram").scope == Scope::kRecord);
  CHECK(rule_named("eval/accuracy").scope == Scope::kEvaluation);
  CHECK(rule_named("sums/swamped").scope == Scope::kLane);
  CHECK(rule_named("exponent_histogram_50").scope == Scope::kLane);
}

TEST_CASE("a rule reads the numbers of the file") {
  const TempDir dir;
  RunOptions options = small_run();
  options.eval_every = 2;
  options.measuring.sums_every = 2;
  const RunFile run = record(dir.file("run.h5"), options);
  LaneView view(run, 1);
  view.load_step(1);
  const LaneStep step = run.step(1, 1);
  CHECK(rule_named("counts/inexact").read(view).integers ==
        testing::column(step, &TensorStats::inexact));
  CHECK(rule_named("counts/count").read(view).integers ==
        testing::column(step, &TensorStats::count));
  CHECK(rule_named("bits_hash").read(view).integers ==
        testing::column(step, &TensorStats::bits_hash));
  CHECK(rule_named("loss").read(view).reals == std::vector{run.loss(1)[1]});
  CHECK(rule_named("lr").read(view).reals == step.lr);
  CHECK(rule_named("loss_scale/scale").read(view).reals == std::vector{run.scalers(1)[1].scale});
  CHECK(rule_named("gradient_norms").read(view).size() == 0);  // no capture was replayed
  CHECK(rule_named("eval/steps_done").read(view).reals == std::vector{2.0, 3.0});
  CHECK(rule_named("sums/step").read(view).integers == std::vector<uint64_t>{0, 2});
  CHECK(rule_named("exponent_histogram_50_steps").read(view).integers == std::vector<uint64_t>{3});
  CHECK(rule_named("exponent_histogram_50").read(view).integers == run.total_histogram(1));
  CHECK(rule_named("died_at").read(view).reals == std::vector{-1.0});
  std::vector<uint64_t> sums = testing::column(run.step(1, 0), &AccumulatorHealth::addends);
  const std::vector<uint64_t> later = testing::column(run.step(1, 2), &AccumulatorHealth::addends);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += later[i];
  const Numbers addends = rule_named("sums/addends").read(view);
  CHECK(addends.integers == sums);
  CHECK(std::ranges::any_of(addends.integers, [](uint64_t n) { return n > 0; }));
}

TEST_CASE("a number is compared at the sites that have it") {
  const TempDir dir;
  const auto set = [](uint64_t count, uint64_t compared, uint64_t zero) {
    return [=](StepRecord& step) {
      SiteRecord& site = step.lanes[1].sites[0];
      site.measured = true;
      site.stats.count = count;
      site.error.compared = compared;
      site.stats.source_zero = zero;
    };
  };
  const RunFile run = record(dir.file("run.h5"), small_run(), {.step = set(8, 0, 8)});
  LaneView view(run, 1);
  view.load_step(0);
  CHECK(view.has_number(At::kEverySite, 0));
  CHECK(view.has_number(At::kMeasured, 0));
  CHECK_FALSE(view.has_number(At::kCompared, 0));
  CHECK_FALSE(view.has_number(At::kNonzero, 0));
  CHECK_FALSE(view.has_number(At::kUpdated, 0));
  const RunFile other = record(dir.file("other.h5"), small_run(), {.step = set(8, 1, 7)});
  LaneView changed(other, 1);
  changed.load_step(0);
  CHECK(changed.has_number(At::kCompared, 0));
  CHECK(changed.has_number(At::kNonzero, 0));
}

TEST_CASE("numbers that a site does not have are not compared") {
  const TempDir dir;
  // Without a compared element err_sq means nothing; without a nonzero one abs_min_nonzero does
  // not.
  const auto with = [&](const std::string& name, double value) {
    return record(dir.file(name), small_run(), {.step = [=](StepRecord& step) {
                    SiteRecord& site = step.lanes[1].sites[0];
                    site.error = {};
                    site.error.err_sq = value;
                    site.stats.source_zero = site.stats.count;
                    site.stats.abs_min_nonzero = value;
                  }});
  };
  const RunFile base = with("base.h5", 1), run = with("run.h5", 2);
  CHECK(run.step(1, 0).sites[0].error.err_sq == 2);
  CHECK(first_rule(run, base) == "");
}

TEST_CASE("a sum of both signs is compared relative to the product of the norms") {
  const TempDir dir;
  const auto with = [&](const std::string& name, double dot) {
    return record(dir.file(name), small_run(), {.step = [=](StepRecord& step) {
                    SiteRecord &site = step.lanes[1].sites[0], &ref = step.lanes[0].sites[0];
                    site.scale = 2;
                    site.stats.sum_sq = 16;
                    ref.stats.sum_sq = 9;
                    site.error.dot_ref = dot;
                  }});
  };
  const RunFile base = with("base.h5", 1e-9);
  LaneView view(base, 1);
  view.load_step(0);
  const ExactRule& rule = rule_named("moments/dot_ref");
  REQUIRE(rule.magnitude);
  CHECK(rule.magnitude(view)[0] == 6);  // sqrt(16 * 9) / 2
  CHECK(rule_named("moments/sum_sq").magnitude == nullptr);
  // Beyond the tolerance relative to itself, within it relative to the norms; then beyond both.
  const double allowed = 6 * ExactOptions::default_rel_tol();
  CHECK(first_rule(with("run.h5", 1e-9 + allowed / 2), base) == "");
  CHECK(first_rule(with("run.h5", 1e-9 + allowed * 2), base) == "moments/dot_ref");
}

TEST_CASE("a fault planted in any quantity is found by its rule") {
  const TempDir dir;
  RunOptions options = small_run();
  options.measuring.sums_every = 1;
  options.lanes = {"fp32", "torch-autocast-fp16"};
  const RunFile base = record(dir.file("base.h5"), options);
  size_t update = 0, sum = 0;
  const LaneStep step = base.step(1, 1);
  while (!step.sites[update].update.measured) ++update;
  while (step.sites[sum].health.samples == 0) ++sum;
  const std::map<std::string, std::function<void(LaneStep&)>> faults = {
      {"updates/stagnant", [&](LaneStep& l) { l.sites[update].update.stats.stagnant += 1; }},
      {"updates/count", [&](LaneStep& l) { l.sites[update].update.stats.count += 1; }},
      {"updates/update_sq", [&](LaneStep& l) { l.sites[update].update.stats.update_sq *= 2; }},
      {"updates/weight_sq", [&](LaneStep& l) { l.sites[update].update.stats.weight_sq *= 2; }},
      {"loss_scale/found_inf", [&](LaneStep& l) { l.scalers[0].found_inf = true; }},
      {"loss_scale/culprit_site", [&](LaneStep& l) { l.scalers[0].culprit_site = 3; }},
      {"sums/samples", [&](LaneStep& l) { l.sites[sum].health.samples += 1; }},
      {"sums/err_sq", [&](LaneStep& l) { l.sites[sum].health.err_sq += 1; }},
      {"exponent_histogram",
       [&](LaneStep& l) { l.sites[update].stats.exponent_histogram[3] += 1; }},
      {"gradient_norm", [&](LaneStep& l) { l.gradient_norm = 1; }},
      {"lr", [&](LaneStep& l) { l.lr[0] *= 2; }},
      {"attempts", [&](LaneStep& l) { l.attempts += 1; }},
  };
  for (const auto& [rule, fault] : faults) {
    CAPTURE(rule);
    const RunFile run = record(dir.file("fault.h5"), options, {.step = [&](StepRecord& step) {
                                 if (step.step == 1) fault(step.lanes[1]);
                               }});
    CHECK(first_rule(run, base) == rule);
  }
  const RunFile later = record(dir.file("later.h5"), options, {.step = [](StepRecord& step) {
                                 for (LaneStep& lane : step.lanes) lane.seconds += 1;
                               }});
  CHECK(first_rule(later, base, {.strict = true}) == "");
}

}  // namespace
}  // namespace lockstep
