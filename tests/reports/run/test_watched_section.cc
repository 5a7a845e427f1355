// The table of watched values, and the numbers that its cells are made of.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <variant>

#include "reports/run/section.h"
#include "tests/reports/run/hand_made_report.h"

namespace lockstep {
namespace {

Blocks watched_blocks(const Report& report) {
  const auto section = std::ranges::find(sections(), "watched", &Section::name);
  REQUIRE(section != sections().end());
  return section->write(report);
}

TEST_CASE("watched values: a row per value and lane, KL of log-probabilities alone") {
  Report report = testing::hand_made();
  CHECK(watched_blocks(report).empty());
  WatchedReport logits = testing::watched_log_probs();
  logits.name = "head";
  logits.equal.kl_sum = logits.last.kl_sum = testing::kNan;
  WatchedReport unseen = {.name = "other path"};
  for (const size_t lane : {1, 2}) {
    report.lanes[lane].watched = {testing::watched_log_probs(), logits, unseen};
  }
  const Blocks blocks = watched_blocks(report);
  const auto& table = std::get<TableBlock>(blocks.at(0));
  REQUIRE(table.rows.size() == 4);
  REQUIRE(table.columns.size() == 11);
  const auto text = [&](size_t row) {
    std::string joined;
    for (const Cell& cell : table.rows[row]) joined += cell.text + "|";
    return joined;
  };
  const std::string lane = report.lanes[1].info.name, other = report.lanes[2].info.name;
  CHECK(text(0) == "log_probs|" + lane + "|2|0.25|0.5|0.12|0.062|1.649|2|0.5|0.062|");
  CHECK(text(1).starts_with("log_probs|" + other));
  CHECK(text(2) == "head|" + lane + "|2|0.25|0.5|0.12|-|-|2|0.5|-|");
  CHECK(table.rows[0][7].number == std::exp(0.5));
  report.options.mode = LaneMode::kSynced;  // no step but those with equal weights
  CHECK(std::get<TableBlock>(watched_blocks(report).at(0)).columns.size() == 9);
}

TEST_CASE("watched values: passes of a step add up") {
  WatchedStats sum = testing::watched_log_probs().equal;
  sum.merge({.count = 2,
             .compared = 1,
             .reference_sum = 2,
             .error_sum = 1,
             .error_max = 1,
             .kl_sum = 0.5});
  CHECK(sum.count == 6);
  CHECK(sum.nonfinite == 1);
  CHECK(sum.mean_error() == 0.4375);
  CHECK(sum.largest_error() == 1);
  CHECK(sum.mean_reference() == 2);
  CHECK(sum.relative_error() == 0.21875);
  CHECK(sum.mean_kl() == 0.171875);
  WatchedStats none;
  CHECK(std::isnan(none.mean_error()));
  CHECK(std::isnan(none.largest_error()));
  none.merge(sum);
  CHECK(none.mean_kl() == sum.mean_kl());
}

}  // namespace
}  // namespace lockstep
