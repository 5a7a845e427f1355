// Values that the user watches, by lane: distance from the reference's, in their own unit.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/run/section.h"
#include "reports/writers/cells.h"

namespace lockstep {
namespace {

Blocks write_watched(const Report& report) {
  // By value, then by lane.
  const auto each = [&](auto work) {
    size_t most = 0;
    for (const LaneReport& lane : report.lanes) most = std::max(most, lane.watched.size());
    for (size_t i = 0; i < most; ++i) {
      for (const LaneReport& lane : report.lanes) {
        const bool is_seen = i < lane.watched.size() && lane.watched[i].last_step >= 0;
        if (is_seen && lane.parts.empty()) work(lane, lane.watched[i]);  // parts have a table
      }
    }
  };
  bool has_log_probs = false, drifts = false, has_nonfinite = false;
  each([&](const LaneReport&, const WatchedReport& value) {
    has_log_probs = has_log_probs || !std::isnan(value.last.mean_kl());
    has_nonfinite = has_nonfinite || value.nonfinite > 0;
    drifts = drifts || value.last_step > 0;
  });
  drifts = drifts && report.options.mode == LaneMode::kFree;
  TableBlock table;
  constexpr bool kOptional = true;
  table.columns = {{"value", Align::kLeft},
                   {"lane", Align::kLeft},
                   {"size"},
                   {"mean error"},
                   {"largest"},
                   {"relative"}};
  if (has_log_probs) {
    table.columns.push_back({"KL"});
    table.columns.push_back({"ratio up to"});
  }
  if (has_nonfinite) table.columns.push_back({"not finite"});
  if (drifts) table.columns.push_back({"last step's", Align::kRight, kOptional});
  if (drifts && has_log_probs) table.columns.push_back({"its KL", Align::kRight, kOptional});
  each([&](const LaneReport& lane, const WatchedReport& value) {
    const WatchedStats &equal = value.equal, &last = value.last;
    std::vector<Cell> row = {value.name,
                             lane.info.name,
                             number_cell(equal.mean_reference()),
                             error_cell(equal.mean_error()),
                             error_cell(equal.largest_error()),
                             error_cell(equal.relative_error())};
    if (has_log_probs) {
      row.push_back(error_cell(equal.mean_kl()));
      row.push_back(number_cell(equal.largest_ratio()));
    }
    if (has_nonfinite) row.push_back(count_cell(value.nonfinite));
    if (drifts) row.push_back(error_cell(last.mean_error()));
    if (drifts && has_log_probs) row.push_back(error_cell(last.mean_kl()));
    table.rows.push_back(std::move(row));
  });
  if (table.rows.empty()) return {};
  table.notes = {fmt::format(
      "Lane minus reference, element by element, {}. size: mean of |reference|; relative: mean "
      "error over size.{}{}{}{}",
      report.options.mode == LaneMode::kSynced
          ? "in all steps, which begin with the reference's weights"
          : "in the first step, which begins with equal weights",
      has_log_probs ? " Of log-probabilities: KL: mean of r - 1 - log r, with r = exp(lane - "
                      "reference); ratio: the largest factor between two probabilities."
                    : "",
      has_nonfinite ? " not finite: elements of all steps that are finite in the reference alone."
                    : "",
      drifts ? " last step's: mean error after training apart, each lane with its own weights."
             : "",
      report.twins.empty() ? "" : " The one-ulp twins show what FP32 itself leaves open.")};
  return {table};
}

}  // namespace

Section watched_section() {
  return {.name = "watched", .title = "Watched values", .in_summary = true, .write = write_watched};
}

}  // namespace lockstep
