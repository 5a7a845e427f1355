// A check by limits, on small recorded runs: what equals the baseline, what is worse, and
// everything that the two sides may not have in common. Each has its own verdict; nothing passes
// silently.
#include "analysis/check/judge.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "tests/analysis/recorded_run.h"

namespace lockstep {
namespace {

using testing::record;
using testing::small_run;
using testing::some_site;
using testing::Tampering;
using testing::TempDir;

constexpr uint64_t kMembers = 4;
constexpr uint64_t kHeldOut = 9;  // a nudge that no member has

RunOptions nudged(uint64_t nudge) {
  RunOptions options = small_run();
  options.nudge = nudge;
  return options;
}

// The baseline of small_run() and members from weights moved by one ulp.
Baseline baseline_with(const Tampering& tampering) {
  const TempDir dir;
  std::vector<RunSummary> ulps;
  const RunFile run = record(dir.file("base.h5"), small_run(), tampering);
  ulps.push_back(summarize(run));
  for (uint64_t nudge = 1; nudge <= kMembers; ++nudge) {
    ulps.push_back(summarize(record(dir.file("member.h5"), nudged(nudge), tampering)));
  }
  Baseline baseline = make_baseline(run, ulps, {});
  baseline.path = "b.json";
  return baseline;
}
const Baseline& good() {
  static const Baseline baseline = baseline_with({});
  return baseline;
}

CheckResult check(const Baseline& baseline, const RunOptions& options,
                  const Tampering& tampering = {}, const CheckOptions& check_options = {}) {
  const TempDir dir;
  return judge_run(record(dir.file("run.h5"), options, tampering), baseline, check_options);
}

bool says(const std::vector<std::string>& lines, const std::string& part) {
  const bool found = std::ranges::any_of(
      lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
  if (!found) {
    MESSAGE("no line has: ", part);
    for (const std::string& line : lines) MESSAGE(line);
  }
  return found;
}

// In the middle of the network, of a lane in low precision.
size_t middle_site() {
  static const size_t site = [] {
    const TempDir dir;
    return some_site(record(dir.file("run.h5"), small_run()));
  }();
  return site;
}
Tampering at_middle(std::function<void(TensorStats&)> change) {
  return {.step = [change = std::move(change)](StepRecord& step) {
    change(step.lanes[1].sites[middle_site()].stats);
  }};
}

TEST_CASE("the run itself is identical, a run of the same kind within noise") {
  const CheckResult same = check(good(), small_run());
  CHECK(same.verdict == CheckVerdict::kIdentical);
  CHECK(same.alarms.empty());
  CHECK(same.judged > 100);
  CHECK(same.families.size() > 10);
  CHECK(same.families[0].lane == "fp32");
  const CheckResult noise = check(good(), nudged(kHeldOut));
  CHECK(exit_code_of(noise.verdict) == 0);
  CHECK(noise.first_other_bits == 0);
  CHECK(noise.alarms.empty());
}

TEST_CASE("a number beyond its limit is a regression that names its place") {
  const CheckResult result =
      check(good(), small_run(), at_middle([](TensorStats& s) { s.to_zero += s.count / 2; }));
  CHECK(result.verdict == CheckVerdict::kRegression);
  REQUIRE(result.alarms.size() == 1);
  const Alarm& alarm = result.alarms[0];
  CHECK(alarm.metric == MetricId::kToZero);
  CHECK(alarm.lane == "torch-autocast-fp16");
  CHECK(alarm.site == static_cast<int32_t>(middle_site()));
  CHECK(alarm.step == 0);
  CHECK(alarm.value > alarm.limit);
  CHECK(alarm.sentence.find("of the nonzero values are rounded to zero; in the baseline") !=
        std::string::npos);
}

TEST_CASE("NaN on both sides is counted, not an alarm; NaN here alone is one") {
  const auto nan = at_middle([](TensorStats& s) { s.nan = s.count / 2; });
  const CheckResult shared = check(baseline_with(nan), small_run(), nan);
  CHECK(shared.verdict == CheckVerdict::kIdentical);
  CHECK(shared.shared_nonfinite == 1);
  const CheckResult fresh = check(good(), small_run(), nan);
  CHECK(fresh.verdict == CheckVerdict::kRegression);
  CHECK(fresh.shared_nonfinite == 0);
  REQUIRE_FALSE(fresh.alarms.empty());
  CHECK(fresh.alarms[0].metric == MetricId::kNonfinite);
  CHECK(std::isinf(fresh.alarms[0].times));
  CHECK(fresh.alarms[0].limit_from ==
        "5 runs from weights moved by one ulp, none of which has any");
}

TEST_CASE("a number that the run lacks is missing, not passed") {
  const CheckResult result =
      check(good(), small_run(), at_middle([](TensorStats& s) { s = TensorStats(); }));
  CHECK(result.verdict == CheckVerdict::kIncomplete);
  CHECK(exit_code_of(result.verdict) == 3);
  CHECK(says(result.missing, "torch-autocast-fp16/to_zero/"));
  CHECK(says(result.missing, "not measured here"));
  CHECK(result.judged < check(good(), small_run()).judged);
}

TEST_CASE("a lane that the run lacks is missing") {
  RunOptions options = small_run();
  options.lanes.pop_back();
  const CheckResult result = check(good(), options);
  CHECK(result.verdict == CheckVerdict::kIncomplete);
  CHECK(says(result.missing, "the run has no lane pure-fp16"));
}

TEST_CASE("a renamed lane is found by its policy and judged") {
  Baseline baseline = good();
  baseline.run.lanes[2].name = "old-name";
  const CheckResult result = check(baseline, small_run());
  CHECK(result.verdict == CheckVerdict::kWithinNoise);
  CHECK(says(result.changes, "lane old-name is called pure-fp16 here"));
  CHECK(std::ranges::any_of(result.families,
                            [](const JudgedFamily& f) { return f.lane == "pure-fp16"; }));
}

TEST_CASE("another version of a preset is named and judged") {
  Baseline baseline = good();
  baseline.run.lanes[2].policy_text += "\nversion = \"0\"\n";
  const CheckResult result = check(baseline, small_run());
  CHECK(result.verdict == CheckVerdict::kWithinNoise);
  CHECK(says(result.changes,
             "lane pure-fp16: its policy differs, first `loss_scale.version = \"0\"` -> "
             "nothing"));
}

TEST_CASE("a renamed layer is matched by structure and judged") {
  Baseline baseline = good();
  const std::string layer = baseline.run.sites[middle_site()].layer;
  REQUIRE_FALSE(layer.empty());
  for (SiteFacts& site : baseline.run.sites) {
    if (site.layer == layer) site.layer = "old_layer";
  }
  for (NodeFacts& node : baseline.run.nodes) {
    if (node.layer == layer) node.layer = "old_layer";
  }
  const CheckResult result = check(baseline, small_run());
  CHECK(result.verdict == CheckVerdict::kWithinNoise);
  CHECK(result.judged == check(good(), small_run()).judged);
  CHECK(says(result.changes, "layer old_layer is called " + layer + " here"));
}

TEST_CASE("a site that only the run has is not judged") {
  Baseline baseline = good();
  const size_t last = baseline.run.sites.size() - 1;
  baseline.run.sites.pop_back();
  for (Ensemble& ensemble : baseline.ensembles) {
    for (LaneBands& lane : ensemble.lanes) {
      for (const Metric& metric : metrics()) {
        std::vector<Band>& bands = lane.bands[static_cast<size_t>(metric.id)];
        if (metric.of == MetricOf::kSite && bands.size() > last) bands.resize(last);
      }
      if (lane.exponents.size() > last) lane.exponents.resize(last);
    }
  }
  const CheckResult result = check(baseline, small_run());
  CHECK(exit_code_of(result.verdict) == 0);
  CHECK(result.judged < check(good(), small_run()).judged);
  CHECK(result.alarms.empty());
}

TEST_CASE("another shape is named; a parameter's leaves the check incomplete") {
  Baseline baseline = good();
  baseline.run.sites[middle_site()].shape = "7x7";
  const CheckResult site = check(baseline, small_run());
  CHECK(site.verdict == CheckVerdict::kWithinNoise);
  CHECK(says(site.changes, "shape: 7x7 -> "));
  baseline = good();
  baseline.run.parameters[0].shape = "7x7";
  const CheckResult parameter = check(baseline, small_run());
  CHECK(parameter.verdict == CheckVerdict::kIncomplete);
  CHECK(says(parameter.missing, ": shape 7x7 -> "));
}

TEST_CASE("a shorter run is incomplete: numbers of the first step alone are judged") {
  RunOptions options = small_run();
  options.steps -= 1;
  const CheckResult result = check(good(), options);
  CHECK(result.verdict == CheckVerdict::kIncomplete);
  CHECK(says(result.missing, "step 2: the run has 2 steps, the baseline 3"));
  CHECK(result.judged > 0);
  for (const JudgedFamily& family : result.families) CHECK(metric_row(family.metric).first_step);
}

TEST_CASE("what changed is said in words: no empty side, and an eps once, with its layers") {
  Baseline baseline = good();
  baseline.run.options.freeze = {"fc1"};
  baseline.run.options.batch_norm_eps = 0.5;
  const CheckResult result = check(baseline, small_run());
  CHECK(result.changes == std::vector<std::string>{"frozen layers: fc1 -> none"});
}

TEST_CASE("a run that is shorter by several steps says which") {
  RunOptions options = small_run();
  options.steps -= 2;
  CHECK(says(check(good(), options).missing, "steps 1 to 2: the run has 1 step, the baseline 3"));
}

TEST_CASE("a longer run cannot be compared") {
  RunOptions options = small_run();
  options.steps += 1;
  const CheckResult result = check(good(), options);
  CHECK(result.verdict == CheckVerdict::kInconclusive);
  CHECK(exit_code_of(result.verdict) == 3);
  CHECK(says(result.why_inconclusive, "the run has 4 steps, the baseline 3"));
}

TEST_CASE("another model has nothing in common") {
  RunOptions options = small_run();
  options.model = "lenet", options.data = "synthetic:100";
  const CheckResult result = check(good(), options);
  CHECK(exit_code_of(result.verdict) != 0);
}

TEST_CASE("too few runs in the ensemble: inconclusive, with what to do") {
  Baseline baseline = good();
  baseline.ensembles[static_cast<size_t>(Draw::kSame)].runs = 1;
  const CheckResult result = check(baseline, nudged(kHeldOut));
  CHECK(result.verdict == CheckVerdict::kInconclusive);
  CHECK(says(result.why_inconclusive, "lockstep baseline record"));
}

TEST_CASE("a truncated or damaged baseline is refused with the place") {
  const std::string text = to_json(good());
  CHECK(baseline_from_json(text, "b.json").run.steps == 3);
  for (const size_t size : {size_t{0}, text.size() / 3, text.size() - 2}) {
    CAPTURE(size);
    std::string said;
    try {
      baseline_from_json(text.substr(0, size), "b.json");
    } catch (const InputError& error) {
      said = error.what();
    }
    CHECK(said.find("b.json") != std::string::npos);
  }
}

TEST_CASE("rules: a limit loosened or tightened, an alarm ignored, a metric required") {
  const auto worse = at_middle([](TensorStats& s) { s.to_zero += s.count / 2; });
  const auto with = [](const std::string& rules) {
    return CheckOptions{.rules = rules_from_toml("version = 1\n" + rules, "rules.toml")};
  };
  const CheckResult loose =
      check(good(), small_run(), worse, with("[[limit]]\nmetric = \"to_zero\"\nmax = 0.9\n"));
  CHECK(loose.alarms.empty());
  const CheckResult tight =
      check(good(), small_run(), worse, with("[[limit]]\nmetric = \"to_zero\"\nmax = 0.25\n"));
  REQUIRE_FALSE(tight.alarms.empty());
  CHECK(tight.alarms[0].limit == doctest::Approx(0.25));
  CHECK(tight.alarms[0].limit_from == "rules.toml, line 2");
  // Worse than it should be, though not worse than the baseline.
  const CheckResult strict =
      check(good(), small_run(), {}, with("[[limit]]\nmetric = \"rounding\"\nmax = -60\n"));
  CHECK(strict.verdict == CheckVerdict::kRegression);
  const CheckResult wide =
      check(good(), small_run(), worse, with("[[limit]]\nmetric = \"to_zero\"\nfactor = 1e6\n"));
  CHECK(wide.alarms.empty());
  const CheckResult ignored =
      check(good(), small_run(), worse,
            with("[[ignore]]\nmetric = \"to_zero\"\nreason = \"x\"\nexpires = 2027-01-31\n"));
  CHECK(exit_code_of(ignored.verdict) == 0);
  REQUIRE(ignored.ignored.size() == 1);
  CHECK(ignored.ignored[0].alarms == 1);
  const CheckResult required =
      check(good(), small_run(), {}, with("required = [\"flipped\", \"to_zero\"]\n"));
  CHECK(required.verdict == CheckVerdict::kIncomplete);
  CHECK(required.missing ==
        std::vector<std::string>{"flipped: required by rules.toml, and judged nowhere"});
}

}  // namespace
}  // namespace lockstep
