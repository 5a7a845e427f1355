// The choice among a folder's baselines: what makes one comparable, and what makes it fit better.
#include "analysis/check/baseline_key.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/analysis/recorded_run.h"

namespace lockstep {
namespace {

using testing::record;
using testing::small_run;
using testing::TempDir;

struct Recorded {
  Baseline baseline;
  CheckedModel run;
};
const Recorded& recorded() {
  static const Recorded both = [] {
    const TempDir dir;
    const RunFile run = record(dir.file("run.h5"), small_run());
    const std::vector<RunSummary> ulps = {summarize(run)};
    return Recorded{.baseline = make_baseline(run, ulps, {}),
                    .run = {facts_without_twins(run), true}};
  }();
  return both;
}

TEST_CASE("the run that was recorded fits exactly; threads do not matter") {
  Baseline baseline = recorded().baseline;
  baseline.run.environment["threads"] = "77";
  const BaselineFit fit = fit_of(baseline, recorded().run);
  CHECK(fit.is_comparable);
  CHECK(fit.is_exact());
  CHECK_FALSE(fit.is_other_model);
  CHECK(fit.settings.empty());
  CHECK(fit_note(fit, "baselines", "b.json").empty());
}

TEST_CASE("another environment or policy is comparable, and the note names it") {
  Baseline other = recorded().baseline;
  other.run.environment["compiler"] = "another";
  other.run.environment.erase("cpu");
  const BaselineFit environment = fit_of(other, recorded().run);
  CHECK(environment.is_comparable);
  CHECK(
      fit_note(environment, "baselines", "b.json") ==
      "Of the baselines in baselines, b.json fits best; it was recorded with another compiler and "
      "cpu");
  Baseline changed = recorded().baseline;
  changed.run.lanes[2].policy_text += "\n";
  const BaselineFit policy = fit_of(changed, recorded().run);
  CHECK(policy.is_comparable);
  CHECK(fit_note(policy, "baselines", "b.json") ==
        "Of the baselines in baselines, b.json fits best; it was recorded with another policy of "
        "lane "
        "pure-fp16");
  CheckedModel renamed = recorded().run;
  renamed.run.options.model = "other";
  CHECK(fit_note(fit_of(recorded().baseline, renamed), "baselines", "b.json") ==
        "Of the baselines in baselines, b.json fits best; it was recorded from another model or "
        "file");
  CHECK(environment.rank() < policy.rank());
}

TEST_CASE("other settings fit worse than another environment") {
  Baseline other = recorded().baseline;
  other.run.options.batch = 99;
  Baseline elsewhere = recorded().baseline;
  elsewhere.run.environment["cpu"] = "another";
  CHECK(fit_of(elsewhere, recorded().run).rank() < fit_of(other, recorded().run).rank());
  other.run.options.seed += 1;
  CHECK(fit_of(other, recorded().run).settings.size() == 2);
}

TEST_CASE("other parameters or lanes are not comparable; a renamed lane is") {
  Baseline other = recorded().baseline;
  other.run.parameters[0].name = "another";
  CHECK_FALSE(fit_of(other, recorded().run).is_comparable);
  Baseline fewer = recorded().baseline;
  fewer.run.lanes.pop_back();
  CHECK_FALSE(fit_of(fewer, recorded().run).is_comparable);
  Baseline renamed = recorded().baseline;
  renamed.run.lanes[2].name = "another";
  CHECK(fit_of(renamed, recorded().run).is_comparable);
  CHECK(fit_of(renamed, recorded().run).is_exact());
}

TEST_CASE("a built-in model is known by its name; its lanes are replayed with today's policies") {
  CheckedModel model;
  model.run.options.model = small_run().model;
  model.run.environment = recorded().baseline.run.environment;
  CHECK(fit_of(recorded().baseline, model).is_comparable);
  CHECK(fit_of(recorded().baseline, model).is_exact());
  Baseline old = recorded().baseline;
  old.run.lanes[1].policy_text += "\n";
  CHECK(fit_of(old, model).policies == std::vector<std::string>{"torch-autocast-fp16"});
  model.run.options.model = "another";
  CHECK_FALSE(fit_of(recorded().baseline, model).is_comparable);
}

TEST_CASE("a key changes with environment, policy and lane, not with threads") {
  const Baseline& b = recorded().baseline;
  auto environment = b.run.environment;
  const std::string key = baseline_key(environment, b.run.lanes);
  CHECK(key.size() == 17);
  environment["threads"] = "77";
  CHECK(baseline_key(environment, b.run.lanes) == key);
  environment["cpu"] = "another";
  CHECK(baseline_key(environment, b.run.lanes).substr(9) == key.substr(9));
  CHECK(baseline_key(environment, b.run.lanes).substr(0, 8) != key.substr(0, 8));
  auto lanes = b.run.lanes;
  lanes[1].policy_text += "\n";
  CHECK(baseline_key(b.run.environment, lanes).substr(0, 9) == key.substr(0, 9));
  CHECK(baseline_key(b.run.environment, lanes) != key);
  // What a recording knows before it runs gives the same key.
  CHECK(baseline_key(b.run.environment, lanes_now(small_run().lanes, {})) == key);
}

}  // namespace
}  // namespace lockstep
