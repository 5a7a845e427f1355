// Runs with different set-ups are never compared, and every kind of difference is named.
#include "analysis/exact/same_setup.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "analysis/exact/exact.h"
#include "tests/analysis/recorded_run.h"

namespace lockstep {
namespace {

using testing::Described;
using testing::record;
using testing::small_run;
using testing::TempDir;

// The only line of `lines`, "" if there are more or none.
std::string only(const std::vector<std::string>& lines) {
  return lines.size() == 1 ? lines[0] : "";
}

// One baseline for all cases, and a run with a changed description.
struct Pair {
  TempDir dir;
  RunFile base = record(dir.file("base.h5"), small_run());
  ComparableLanes result;

  void compare(std::function<void(Described&)> change) {
    const RunFile run = record(dir.file("run.h5"), small_run(), {.description = std::move(change)});
    result = comparable_lanes(run, base);
  }
};

TEST_CASE("equal set-ups pair every lane") {
  Pair pair;
  pair.compare({});
  CHECK(pair.result.not_comparable.empty());
  CHECK(pair.result.missing.empty());
  CHECK(pair.result.remarks.empty());
  REQUIRE(pair.result.lanes.size() == 3);
  CHECK(pair.result.lanes[2].before == 2);
  CHECK(pair.result.lanes[2].after == 2);
}

TEST_CASE("an option that affects the numbers is named with both values") {
  Pair pair;
  struct Changed {
    const char* line;
    std::function<void(RunOptions&)> change;
  };
  const std::vector<Changed> cases = {
      {"model: 'lenet' here, 'mlp' in the baseline", [](RunOptions& o) { o.model = "lenet"; }},
      {"data: 'shapes' here, 'synthetic' in the baseline",
       [](RunOptions& o) { o.data = "shapes:100"; }},
      {"batch: '4' here, '8' in the baseline", [](RunOptions& o) { o.batch = 4; }},
      {"seed: '2' here, '1' in the baseline", [](RunOptions& o) { o.seed = 2; }},
      {"mode: 'synced' here, 'free' in the baseline",
       [](RunOptions& o) { o.mode = LaneMode::kSynced; }},
      {"accumulate: '2' here, '1' in the baseline", [](RunOptions& o) { o.accumulate = 2; }},
      {"workers: '2' here, '1' in the baseline", [](RunOptions& o) { o.workers = 2; }},
      {"backward: 'per-loss' here, 'joint' in the baseline",
       [](RunOptions& o) { o.backward_per_loss = true; }},
      {"clipping: '2-norm 1, value 0' here, '2-norm 0, value 0' in the baseline",
       [](RunOptions& o) { o.clip_norm = 1; }},
      {"frozen layers: 'fc1' here, '' in the baseline", [](RunOptions& o) { o.freeze = {"fc1"}; }},
      {"batch_norm in evaluation mode: 'bn' here, '' in the baseline",
       [](RunOptions& o) { o.eval_batch_norm = {"bn"}; }},
      {"batch_norm eps: '0.5' here, 'own' in the baseline",
       [](RunOptions& o) { o.batch_norm_eps = 0.5; }},
      {"start_from: 'a.state' here, '' in the baseline",
       [](RunOptions& o) { o.start_from = "a.state"; }},
  };
  for (const Changed& c : cases) {
    CAPTURE(c.line);
    pair.compare([&](Described& d) { c.change(d.options); });
    CHECK(only(pair.result.not_comparable) == c.line);
    CHECK(pair.result.lanes.empty());
  }
}

TEST_CASE("optimizer, schedule and groups are named by their numbers") {
  Pair pair;
  const auto line_of = [&](std::function<void(RunOptions&)> change) {
    pair.compare([&](Described& d) { change(d.options); });
    return only(pair.result.not_comparable);
  };
  CHECK(line_of([](RunOptions& o) {
          o.optimizer.values["lr"] = 0.5;
        }).starts_with("optimizer lr: '0.5' here, "));
  CHECK(
      line_of([](RunOptions& o) { o.optimizer.name = "adamw"; }).starts_with("optimizer: 'adamw "));
  CHECK(line_of([](RunOptions& o) { o.schedule.name = "step"; }).starts_with("schedule: "));
  const std::string groups = line_of([](RunOptions& o) {
    o.groups.push_back({"fc1", {"sgd", {{"lr", 0.5}}}});
  });
  CHECK(groups.starts_with("group 1: 'fc1: sgd "));
  RunOptions one = small_run(), other = small_run();
  one.groups = {{"fc1", {"sgd", {{"lr", 0.5}}}}};
  other.groups = {{"fc1", {"sgd", {{"lr", 0.25}}}}};
  const std::vector<SetupDifference> fields = setup_differences(one, other);
  REQUIRE(fields.size() == 1);
  CHECK(fields[0].name == "group fc1 lr");
  CHECK(fields[0].run == "0.5");
  CHECK(fields[0].baseline == "0.25");
  // A number set to its initial value is not a difference.
  CHECK(line_of([](RunOptions& o) { o.optimizer.values["dampening"] = 0; }).empty());
  CHECK(pair.result.lanes.size() == 3);
}

TEST_CASE("another graph or site table is named") {
  Pair pair;
  pair.compare([](Described& d) { d.graph.nodes[0].layer = "elsewhere"; });
  CHECK(only(pair.result.not_comparable) == "step graph: differs from the baseline's");
  pair.compare([](Described& d) { d.sites.sites[1].layer = "elsewhere"; });
  const std::string label = pair.base.sites().sites[1].label();
  const std::string line = only(pair.result.not_comparable);
  CHECK(line.starts_with("site 1: 'elsewhere "));
  CHECK(line.ends_with("'" + label + "' in the baseline"));
}

TEST_CASE("lanes: missing, added, of another policy or engine") {
  Pair pair;
  RunOptions fewer = small_run(), more = small_run();
  fewer.lanes.pop_back();
  more.lanes.push_back("tf32");
  const RunFile without = record(pair.dir.file("fewer.h5"), fewer);
  const RunFile with = record(pair.dir.file("more.h5"), more);
  ComparableLanes result = comparable_lanes(without, pair.base);
  CHECK(result.lanes.size() == 2);
  CHECK(only(result.missing) == "lane pure-fp16: in the baseline, not in this run");
  result = comparable_lanes(with, pair.base);
  CHECK(result.lanes.size() == 3);
  CHECK(only(result.not_comparable) == "lane tf32: in this run, not in the baseline");
  pair.compare([](Described& d) { d.run.lanes[1].policy.text += "# another\n"; });
  CHECK(only(pair.result.not_comparable) == "lane torch-autocast-fp16: its policy differs");
  CHECK(pair.result.lanes.size() == 2);
  pair.compare([](Described& d) { d.run.lanes[1].target = "hopper"; });
  CHECK(only(pair.result.not_comparable) ==
        "lane torch-autocast-fp16: engine software@hopper here, software@ in the baseline");
  CHECK(pair.result.lanes.size() == 2);
}

TEST_CASE("steps: fewer are missing, more have no baseline") {
  Pair pair;
  RunOptions options = small_run();
  options.steps = 2;
  ComparableLanes result = comparable_lanes(record(pair.dir.file("run.h5"), options), pair.base);
  CHECK(only(result.missing) == "steps: 2 here, 3 in the baseline");
  options.steps = 5;
  result = comparable_lanes(record(pair.dir.file("run.h5"), options), pair.base);
  CHECK(only(result.not_comparable) == "steps from 3 on: not in the baseline");
}

TEST_CASE("a difference that affects no number is a remark") {
  Pair pair;
  pair.compare([](Described& d) { d.options.measuring.histogram_every = 7; });
  CHECK(only(pair.result.remarks) == "histograms: every 7 steps here, every 10 in the baseline");
  pair.compare([](Described& d) { d.options.data = "synthetic:200"; });
  CHECK(only(pair.result.remarks) == "data: 'synthetic:200' here, 'synthetic:100' in the baseline");
  CHECK(pair.result.not_comparable.empty());
  CHECK(pair.result.lanes.size() == 3);
}

TEST_CASE("the verdict: nothing comparable, or a regression where the baseline has more") {
  Pair pair;
  const auto verdict_of = [&](const std::function<void(RunOptions&)>& change) {
    RunOptions options = small_run();
    change(options);
    return compare_exactly(record(pair.dir.file("run.h5"), options), pair.base, {}).verdict;
  };
  CHECK(verdict_of([](RunOptions& o) { o.seed = 2; }) == ExactVerdict::kNothingComparable);
  CHECK(verdict_of([](RunOptions& o) { o.mode = LaneMode::kSynced; }) ==
        ExactVerdict::kNothingComparable);
  // One lane more, or more steps: nothing differs, but not everything has a baseline.
  CHECK(verdict_of([](RunOptions& o) { o.lanes.push_back("tf32"); }) ==
        ExactVerdict::kNothingComparable);
  CHECK(verdict_of([](RunOptions& o) { o.steps = 4; }) == ExactVerdict::kNothingComparable);
  // Part of the baseline is missing.
  CHECK(verdict_of([](RunOptions& o) { o.lanes.pop_back(); }) == ExactVerdict::kIncomplete);
  CHECK(verdict_of([](RunOptions& o) { o.steps = 2; }) == ExactVerdict::kIncomplete);
}

}  // namespace
}  // namespace lockstep
