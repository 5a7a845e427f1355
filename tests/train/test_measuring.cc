// Runs of which not every step is measured: the numbers of training, the statistics of measured
// steps and the end are those of a run that measures everything, and steps that break have
// statistics.
#include <doctest/doctest.h>

#include <vector>

#include "src/core/error.h"
#include "tests/train/small_runs.h"

using namespace lockstep;

namespace {

// Measured steps are equal in all numbers, others in those of lanes. Returns the measured ones.
std::vector<int64_t> compare_steps(const Recorder& some, const Recorder& all) {
  std::vector<int64_t> measured;
  REQUIRE(some.steps.size() == all.steps.size());
  for (size_t s = 0; s < some.steps.size(); ++s) {
    CAPTURE(s);
    const StepRecord &a = some.steps[s], &b = all.steps[s];
    REQUIRE(b.is_measured);
    for (size_t l = 0; l < a.lanes.size(); ++l) {
      CHECK(same(a.lanes[l].loss, b.lanes[l].loss));
      CHECK(same(a.lanes[l].gradient_norm, b.lanes[l].gradient_norm));
      CHECK(a.lanes[l].attempts == b.lanes[l].attempts);
      CHECK(a.lanes[l].alive == b.lanes[l].alive);
      for (size_t i = 0; i < a.lanes[l].scalers.size(); ++i) {
        CHECK(a.lanes[l].scalers[i].scale == b.lanes[l].scalers[i].scale);
        CHECK(a.lanes[l].scalers[i].skipped == b.lanes[l].scalers[i].skipped);
        CHECK(a.lanes[l].scalers[i].culprit_site == b.lanes[l].scalers[i].culprit_site);
      }
    }
    if (a.is_measured) {
      measured.push_back(a.step);
      CHECK(check_same_step(a, b) > 50);
      continue;
    }
    for (const LaneStep& lane : a.lanes) {
      for (const SiteRecord& site : lane.sites) {
        REQUIRE_FALSE(site.measured);
        REQUIRE_FALSE(site.update.measured);
        REQUIRE(site.health.samples == 0);
      }
    }
  }
  return measured;
}

// The measured steps of a run that measures every `every`-th step.
std::vector<int64_t> measured_steps(RunOptions options, int64_t every) {
  Recorder all, some;
  const RunState end = run(options, all);
  options.measuring.statistics_every = every;
  check_same_state(run(options, some), end);
  return compare_steps(some, all);
}

using Steps = std::vector<int64_t>;

}  // namespace

TEST_CASE(
    "measuring: histograms and sums take the first measured step at or after their multiples") {
  for (const int64_t every : {0, 1, 2, 3, 5, 7, 10, 60}) {
    for (const int64_t period : {1, 2, 7, 10, 50}) {
      CAPTURE(every);
      CAPTURE(period);
      const Measuring measuring{
          .statistics_every = every, .histogram_every = period, .sums_every = period};
      int64_t samples = 0, next = 0;  // the first step that a sample is due at
      for (int64_t step = 0; step < 500; ++step) {
        const bool measured = every == 0 ? step == 0 : step % every == 0;
        CHECK(measuring.is_due(step) == measured);
        const bool takes = measured && step >= next;
        CHECK(measuring.samples_sums(step) == takes);
        CHECK(measuring.keeps_histogram(step) == takes);
        if (!takes) continue;
        CHECK(measuring.sample_number(step) == samples++);
        while (next <= step) next += period;
      }
    }
  }
  CHECK_FALSE(Measuring{.sums_every = 0}.samples_sums(0));
  CHECK_FALSE(Measuring{.on = false}.is_due(0));
}

TEST_CASE("measuring: a part of the steps gives the numbers of a run that measures all") {
  RunOptions options = small_run(kAllLanes, 4);
  CHECK(measured_steps(options, 3) == Steps{0, 3});
  CHECK(measured_steps(options, 0) == Steps{0});
  options.mode = LaneMode::kSynced;
  options.lanes = {"fp32", "torch-autocast-fp16", "pure-fp16"};
  CHECK(measured_steps(options, 2) == Steps{0, 2});
}

TEST_CASE("measuring: micro-batches, workers, clipping and buffers") {
  RunOptions options = small_run({"fp32", "torch-autocast-fp16", "pure-fp16"}, 3);
  options.model = "lenet";
  options.clip_norm = 0.5;
  options.accumulate = 2;
  CHECK(measured_steps(options, 2) == Steps{0, 2});
  options.workers = 2;
  CHECK(measured_steps(options, 2) == Steps{0, 2});
}

TEST_CASE("measuring: steps whose gradients overflow are measured and have a culprit") {
  // 2^26 overflows in FP16 until it has fallen, then grows into the limit again.
  const std::string lane = write_policy("overflows_now_and_then",
                                        "extends = \"torch-autocast-fp16\"\n[loss_scale]\n"
                                        "init_scale = 67108864\ngrowth_interval = 4\n");
  RunOptions options = small_run({"fp32", lane}, 24);
  options.model = "lenet";
  Recorder all;
  run(options, all);
  Steps expected;
  int64_t late = 0;
  for (const StepRecord& step : all.steps) {
    const bool skipped = step.lanes[1].scalers[0].skipped;
    if (step.step == 0 || skipped) expected.push_back(step.step);
    if (skipped) CHECK(step.lanes[1].scalers[0].culprit_site >= 0);
    late += skipped && step.step > 8;
  }
  REQUIRE(late > 0);
  REQUIRE(expected.size() < all.steps.size());
  CHECK(measured_steps(options, 0) == expected);
}

TEST_CASE("measuring: weights that overflow in an update, after finite gradients") {
  RunOptions options =
      small_run({"fp32", write_policy("fp16_weights", "[storage]\nweight = \"fp16\"\n")}, 6);
  options.optimizer.values = {{"lr", 3}};
  Recorder all;
  LockstepRun whole(options);  // its description is read below
  run(whole, all);
  Steps broken;
  for (const StepRecord& step : all.steps) {
    for (size_t s = 0; s < step.lanes[1].sites.size(); ++s) {
      const bool is_weight = all.description->sites->sites[s].role == Role::kWeight;
      if (is_weight && step.lanes[1].sites[s].stats.to_infinity > 0) broken.push_back(step.step);
    }
  }
  REQUIRE(broken == Steps{5});
  CHECK_FALSE(all.steps[5].lanes[1].scalers[0].found_inf);
  CHECK(measured_steps(options, 0) == Steps{0, 5});
}

TEST_CASE("measuring: buffers that overflow, and the steps after that") {
  RunOptions options = small_run({"fp32", "pure-fp16"}, 4);
  options.model = "lenet";
  options.batch = 64;
  options.optimizer.values = {{"lr", 3}};
  Recorder all;
  LockstepRun whole(options);
  run(whole, all);
  int64_t first = -1;
  for (const StepRecord& step : all.steps) {
    for (size_t s = 0; s < step.lanes[1].sites.size() && first < 0; ++s) {
      const Site& site = all.description->sites->sites[s];
      const bool is_buffer = site.role == Role::kBuffer && site.point == Point::kOutput;
      const TensorStats& stats = step.lanes[1].sites[s].stats;
      if (is_buffer && stats.nonfinite_seen(site.stat_exempt)) first = step.step;
    }
  }
  REQUIRE(first > 0);
  const Steps measured = measured_steps(options, 0);
  REQUIRE(measured.size() > 1);
  CHECK(measured[1] == first);
}

TEST_CASE("measuring: a batch that is replayed") {
  const std::string lane = write_policy("replays_unmeasured",
                                        "extends = \"torch-autocast-fp16\"\n[loss_scale]\n"
                                        "init_scale = 1099511627776\nreplay = true\n"
                                        "growth_interval = 3\n");
  RunOptions options = small_run({"fp32", lane, "tf32"}, 10);
  options.model = "lenet";
  const Steps measured = measured_steps(options, 0);
  CHECK(measured.size() > 1);
  CHECK(measured.size() < 10);
}

// A site that its lane counted in `some` has the counts of the run that measures everything.
void check_counts(const SiteRecord& some, const SiteRecord& all) {
  REQUIRE_FALSE(some.measured);
  REQUIRE_FALSE(some.update.measured);
  for (const Statistic& row : statistics()) {
    if (row.kind() != StatisticKind::kCount || row.name == "compared") continue;
    CAPTURE(row.name);
    CHECK(row.count(some.stats, some.error) == row.count(all.stats, all.error));
  }
  CHECK(some.stats.sum_sq == 0);
  CHECK(some.stats.bits_hash == 0);
  CHECK(some.error.compared == 0);
}

TEST_CASE("measuring: counts in between are those of a run that measures all") {
  struct Way {
    int64_t workers;
    LaneMode mode;
  };
  for (const Way& way :
       {Way{1, LaneMode::kFree}, Way{2, LaneMode::kFree}, Way{1, LaneMode::kSynced}}) {
    RunOptions options = small_run({"fp32", "torch-autocast-fp16", "pure-fp16", "tf32",
                                    "fp8-current", "mxfp8", "pure-fp16-stochastic", "twin"},
                                   4);
    options.model = "lenet";
    options.accumulate = 2;
    options.workers = way.workers;
    options.mode = way.mode;
    Recorder all, some;
    LockstepRun whole(options);  // its sites are read below
    const RunState end = run(whole, all);
    options.measuring.statistics_every = 3;
    options.measuring.counts_between = true;
    check_same_state(run(options, some), end);
    int64_t counted = 0, lost = 0;
    for (const int64_t step : {1, 2}) {
      CHECK_FALSE(some.steps[static_cast<size_t>(step)].is_measured);
      for (size_t l = 0; l < all.steps[0].lanes.size(); ++l) {
        const LaneStep& mine = some.steps[static_cast<size_t>(step)].lanes[l];
        const LaneStep& theirs = all.steps[static_cast<size_t>(step)].lanes[l];
        for (const Site& site : all.description->sites->sites) {
          CAPTURE(step);
          CAPTURE(l);
          CAPTURE(site.label());
          const SiteRecord& a = mine.sites[static_cast<size_t>(site.id)];
          const SiteRecord& b = theirs.sites[static_cast<size_t>(site.id)];
          const bool rounds = is_in_graph(site) && site.point != Point::kAccumulator &&
                              site.role != Role::kBuffer && b.stats.inexact > 0;
          if (rounds) REQUIRE(a.counted);
          if (!a.counted) continue;
          check_counts(a, b);
          ++counted;
          lost += a.stats.to_zero > 0;
        }
      }
    }
    CHECK(counted > 200);
    CHECK(lost > 0);
    CHECK(check_same_step(some.steps[3], all.steps[3]) > 50);
  }
}

TEST_CASE("measuring: statistics-every must be 0 or more") {
  RunOptions options = small_run({"fp32"}, 2);
  options.measuring.statistics_every = -1;
  CHECK_THROWS_AS(LockstepRun{options}, InputError);
}
