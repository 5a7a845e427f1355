// Every alarm: a step that raises it, and the nearest one that does not.
#include "analysis/monitor/alarms.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "tests/analysis/monitor/watched_run.h"
#include "tests/monitor/monitored.h"
#include "tests/support/refusal.h"

namespace lockstep::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int32_t kWholeStep = -1;

struct AlarmCase {
  std::string rule;
  int32_t site;
  std::string said;  // of the alarm's sentence
  std::function<void(LaneStep&)> bad, almost;
  int skipped_before = 0;  // steps between the well ones and this one
  int zero_before = 0;     // the same, without a gradient
};

// `count` of the site's values move from its largest octave to that of 2^exponent.
void move_values(LaneStep& lane, int32_t site, int exponent, uint64_t count) {
  auto& bins = lane.sites[static_cast<size_t>(site)].stats.exponent_histogram;
  bins[127] -= count;
  bins[static_cast<size_t>(127 + exponent)] += count;
}

void skip(LaneStep& lane) {
  lane.scalers[0].found_inf = lane.scalers[0].skipped = true;
}

// The limits, by hand, in the rows' order. Of spikes: the last 128 values alternate around their
// mean by 0.05, so that 6 standard deviations are 6 * 0.05 * sqrt(128 / 127) = 0.301.
std::vector<AlarmCase> alarm_cases() {
  return {
      {"loss-not-finite", kWholeStep, "the loss is inf",
       [](LaneStep& lane) { lane.loss = kInfinity; },
       [](LaneStep& lane) { lane.loss = std::numeric_limits<double>::max(); }},
      {"not-finite", kFcGradWeight, "elements are not finite",
       [](LaneStep& lane) { move_values(lane, kFcGradWeight, 128, 1); },
       [](LaneStep& lane) {
         move_values(lane, kFcGradWeight, 128, 1);
         skip(lane);  // the scaler's own business
       }},
      {"loss-spike", kWholeStep, "1.05 in the mean of the last steps, limit 1.351",
       [](LaneStep& lane) { lane.loss = 1.352; }, [](LaneStep& lane) { lane.loss = 1.351; }},
      {"gradient-spike", kWholeStep, "typically 1.051 in the last steps, limit 1.421",
       [](LaneStep& lane) { lane.gradient_norm = std::exp(0.352); },
       [](LaneStep& lane) { lane.gradient_norm = std::exp(0.351); }},
      {"gradient-far-above-start", kWholeStep, "at least 10 times the largest of the first 100",
       [](LaneStep& lane) { lane.gradient_norm = 10 * std::exp(0.1); },
       [](LaneStep& lane) { lane.gradient_norm = std::nextafter(10 * std::exp(0.1), 0); }},
      {"skips", kWholeStep, "skipped 4 of the last 20 steps, more than 3; its scale is 1024", skip,
       [](LaneStep&) {}, 3},
      {"low-scale", kWholeStep, "the loss scale is 0.5, below 1",
       [](LaneStep& lane) { lane.scalers[0].scale = 0.5; },
       [](LaneStep& lane) { lane.scalers[0].scale = 1; }},
      {"update-norm", kWholeStep, "is 4, 2 times the median of the last 8 measured steps, 2",
       [](LaneStep& lane) { lane.sites[kFcWeight].update.stats.update_sq = 4; },
       [](LaneStep& lane) { lane.sites[kFcWeight].update.stats.update_sq = 3.99; }},
      {"attention-logits", kLogits, "a logit of attention is 100.5, above 100",
       [](LaneStep& lane) { lane.sites[kLogits].stats.abs_max = 100.5; },
       [](LaneStep& lane) { lane.sites[kLogits].stats.abs_max = 100; }},
      {"zero-gradient", kFcGradWeight, "elements are zero in 2 measured steps, and were not before",
       [](LaneStep& lane) { lane.sites[kFcGradWeight].stats.source_zero = kMonitoredCount; },
       [](LaneStep& lane) { lane.sites[kFcGradWeight].stats.source_zero = kMonitoredCount - 1; }, 0,
       1},
      // 1998 values are not zero. With a scale that sets 1 to 2^8, below fp8_e4m3's 448, those
      // below 2^-18 round to zero: 100 / 1998 = 0.05005, 99 / 1998 = 0.0495.
      {"fp8-underflow", kFloat8, "5 % of the nonzero values become zero in fp8_e4m3",
       [](LaneStep& lane) { move_values(lane, kFloat8, -19, 100); },
       [](LaneStep& lane) { move_values(lane, kFloat8, -19, 99); }},
      {"headroom", kFcOutput, "below fp16's largest number 65504",
       [](LaneStep& lane) { lane.sites[kFcOutput].stats.abs_max = 32'753; },
       [](LaneStep& lane) { lane.sites[kFcOutput].stats.abs_max = 32'752; }},
      {"stagnation", kFcWeight, "50 % of the updated weights keep their value, 10 % in the first",
       [](LaneStep& lane) { lane.sites[kFcWeight].update.stats.stagnant = 50; },
       [](LaneStep& lane) { lane.sites[kFcWeight].update.stats.stagnant = 49; }},
      // 2 / 1998 = 0.001001, 1 / 1998 = 0.0005
      {"saturation", kFloat8, "are above 1, the largest of the measured steps before",
       [](LaneStep& lane) { move_values(lane, kFloat8, 1, 2); },
       [](LaneStep& lane) { move_values(lane, kFloat8, 1, 1); }},
  };
}

// The alarms of the case's step, after well ones.
std::vector<LiveAlarm> after_lead(WatchedRun& run, const AlarmCase& one,
                                  const std::function<void(LaneStep&)>& change) {
  REQUIRE(run.lead(one.rule) == 0);
  for (int i = 0; i < one.skipped_before; ++i) REQUIRE(run.next(one.rule, skip).empty());
  for (int i = 0; i < one.zero_before; ++i) {
    REQUIRE(run.next(one.rule,
                     [](LaneStep& lane) {
                       lane.sites[kFcGradWeight].stats.source_zero = kMonitoredCount;
                     })
                .empty());
  }
  return run.next(one.rule, change);
}

}  // namespace

TEST_CASE("each row of the table of alarms has its own name, a help text, a source and a case") {
  std::set<std::string> names, cases;
  for (const AlarmRow& row : alarm_rows()) {
    CAPTURE(row.name);
    CHECK(names.insert(std::string(row.name)).second);
    CHECK_FALSE(row.help.empty());
    CHECK_FALSE(row.source.empty());
  }
  for (const AlarmCase& one : alarm_cases()) cases.insert(one.rule);
  CHECK(cases == names);
}

TEST_CASE("each alarm names its step and place, and a slightly better step raises none") {
  for (const AlarmCase& one : alarm_cases()) {
    CAPTURE(one.rule);
    WatchedRun run, other;
    CHECK(after_lead(other, one, one.almost).empty());
    const std::vector<LiveAlarm> told = after_lead(run, one, one.bad);
    REQUIRE(told.size() == 1);
    const LiveAlarm& alarm = told[0];
    CHECK(alarm.step == run.last_step());
    CHECK(alarm.site == one.site);
    CHECK(alarm.more == 0);
    const bool is_of_step = one.site == kWholeStep;
    const int64_t first = one.rule == "not-finite" ? 30 : 10;
    CHECK(alarm.rank == (is_of_step ? -1 : first + one.site));
    CHECK(alarm.micro_batch == (is_of_step ? -1 : first + 10 + one.site));
    CAPTURE(alarm.sentence);
    CHECK(has(alarm.sentence, one.said));
  }
}

TEST_CASE("each alarm is raised once, and again only after it recovered") {
  for (const AlarmCase& one : alarm_cases()) {
    CAPTURE(one.rule);
    WatchedRun run;
    REQUIRE(after_lead(run, one, one.bad).size() == 1);
    CHECK(run.next(one.rule, one.bad).empty());
    CHECK(after_lead(run, one, one.bad).size() == 1);  // the well steps tell of nothing
  }
}

TEST_CASE("the worst place is named, and the number of others") {
  WatchedRun run;
  const auto told =
      run.next("attention-logits", [](LaneStep& lane) { lane.sites[kLogits].stats.abs_max = 400; });
  REQUIRE(told.size() == 1);
  CHECK(told[0].more == 0);

  WatchedRun several;
  REQUIRE(several.lead("headroom") == 0);
  const auto worst = several.next("headroom", [](LaneStep& lane) {
    lane.sites[kFcOutput].stats.abs_max = 40'000;
    lane.sites[kFcGradOutput].stats.abs_max = 60'000;  // a loss scale is in it
    lane.sites[kLogits].stats.abs_max = 50'000;
  });
  REQUIRE(worst.size() == 1);
  CHECK(worst[0].site == kLogits);
  CHECK(worst[0].rank == 10 + kLogits);
  CHECK(worst[0].more == 1);
}

TEST_CASE("of values that are not finite the first place is named, and later the new ones") {
  WatchedRun run;
  const auto first = run.next("not-finite", [](LaneStep& lane) {
    move_values(lane, kFcOutput, 128, 1);
    move_values(lane, kLogits, 128, 500);
  });
  REQUIRE(first.size() == 1);
  CHECK(first[0].site == kFcOutput);
  CHECK(first[0].rank == 30 + kFcOutput);
  CHECK(first[0].more == 1);
  const auto later = run.next("not-finite", [](LaneStep& lane) {
    move_values(lane, kFcOutput, 128, 1);
    move_values(lane, kFcGradOutput, 128, 1);
    move_values(lane, kLogits, 128, 500);
  });
  REQUIRE(later.size() == 1);
  CHECK(later[0].site == kFcGradOutput);
  CHECK(later[0].more == 0);
}

TEST_CASE("a step that is not measured, and a site that it lacks, end no alarm") {
  const auto bad = [](LaneStep& lane) { lane.sites[kLogits].stats.abs_max = 101; };
  WatchedRun run;
  REQUIRE(run.next("attention-logits", bad).size() == 1);
  StepRecord between = run.well();
  between.is_measured = false;
  between.lanes[0].sites.clear();
  CHECK(run.next("attention-logits", between).empty());
  CHECK(run.next("attention-logits", bad).empty());
  CHECK(run.next("attention-logits", [](LaneStep& lane) { lane.sites[kLogits] = SiteRecord(); })
            .empty());
  CHECK(run.next("attention-logits", bad).empty());
}

TEST_CASE("no alarm at the start: a falling first scale, gradients that are always zero") {
  WatchedRun run;
  for (int i = 0; i < 30; ++i) CHECK(run.next("skips", skip).empty());
  const auto zero = [](LaneStep& lane) {
    lane.sites[kFcGradWeight].stats.source_zero = kMonitoredCount;
  };
  WatchedRun other;
  for (int i = 0; i < 3; ++i) CHECK(other.next("zero-gradient", zero).empty());
  const auto stagnant = [](LaneStep& lane) { lane.sites[kFcWeight].update.stats.stagnant = 60; };
  for (int i = 0; i < 3; ++i) {
    CHECK(WatchedRun().next("stagnation", stagnant).empty());  // half were at the start
  }
}

TEST_CASE("spikes need 64 values, and ignore those that are not finite") {
  const auto high = [](LaneStep& lane) { lane.loss = 100; };
  WatchedRun early, late;
  early.lead("loss-spike", 62);
  early.next("loss-spike", [](LaneStep& lane) { lane.loss = kInfinity; });
  CHECK(early.next("loss-spike", high).empty());  // 62 values
  late.lead("loss-spike", 64);
  CHECK(late.next("loss-spike", high).size() == 1);
}

TEST_CASE("updates of a step in which no weight could move say nothing") {
  for (const bool skipped : {true, false}) {
    WatchedRun run;
    for (int i = 0; i < 10; ++i) {
      CHECK(run.next("stagnation",
                     [&](LaneStep& lane) {
                       lane.sites[kFcWeight].update.stats.stagnant = 100;
                       skipped ? skip(lane) : void(lane.lr = {0, 0});
                     })
                .empty());
    }
    REQUIRE(run.lead("stagnation") == 0);
    CHECK(run.next("stagnation",
                   [](LaneStep& lane) { lane.sites[kFcWeight].update.stats.stagnant = 60; })
              .size() == 1);
  }
}

TEST_CASE("a warm-up doubles the updates, which is no alarm") {
  WatchedRun run;
  for (int i = 1; i < 40; ++i) {
    CHECK(run.next("update-norm",
                   [&](LaneStep& lane) {
                     lane.lr = {0.001 * i, 0.001};
                     lane.sites[kFcWeight].update.stats.update_sq = 0.01 * i * i;
                   })
              .empty());
  }
}

TEST_CASE("headroom that stays low raises one alarm, whether it falls or not") {
  WatchedRun run;
  REQUIRE(run.lead("headroom") == 0);
  size_t told = 0;
  for (int i = 0; i < 20; ++i) {
    told += run.next("headroom",
                     [&](LaneStep& lane) {
                       lane.sites[kFcOutput].stats.abs_max = i % 2 == 0 ? 40'000 : 45'000;
                     })
                .size();
  }
  CHECK(told == 1);
}

TEST_CASE("an infinity is no history for a delayed scale") {
  WatchedRun run;
  REQUIRE(run.lead("saturation") == 0);
  run.next("saturation", [](LaneStep& lane) { lane.sites[kFloat8].stats.abs_max = kInfinity; });
  CHECK(run.lead("saturation") == 0);
}

TEST_CASE("a loss that was never seen is no alarm") {
  WatchedRun run;
  const auto never = [](LaneStep& lane) { lane.loss = std::nan(""); };
  for (int i = 0; i < 5; ++i) CHECK(run.next("loss-not-finite", never).empty());
  CHECK(run.lead("loss-not-finite", 1) == 0);
  CHECK(run.next("loss-not-finite", never).size() == 1);
}

}  // namespace lockstep::testing
