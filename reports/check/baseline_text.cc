// See baseline_text.h.
#include "reports/check/baseline_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "analysis/check/alarm_sentence.h"
#include "reports/writers/text_writer.h"
#include "src/core/counted.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr size_t kShownKeys = 30;

// As in a check's table: shares in percent, sizes and errors as a multiple of those before. A
// number that one side lacks: the other's own size.
std::pair<std::string, std::string> number_texts(const KeyChange& change) {
  const bool has_before = !std::isnan(change.before), has_after = !std::isnan(change.after);
  Alarm alarm{.metric = change.metric, .value = change.after, .expected = change.before};
  if (has_before && has_after) {
    const AlarmNumbers numbers = alarm_numbers(alarm);
    return {numbers.expected, numbers.value};
  }
  alarm.value = has_before ? change.before : change.after;
  alarm.expected = -std::numeric_limits<double>::infinity();
  const std::string text = alarm_numbers(alarm).value;
  return {has_before ? text : "-", has_after ? text : "-"};
}

}  // namespace

std::string diff_text(const BaselineDiff& diff) {
  Blocks blocks;
  if (!diff.changes.empty()) {
    blocks.push_back(paragraph("What changed:"));
    blocks.push_back(verbatim(join(diff.changes, "\n")));
  }
  if (!diff.same_keys) {
    blocks.push_back(paragraph(
        "The two have other sites, parameters or lanes: only the whole can be accepted."));
    return to_text(blocks);
  }
  blocks.push_back(
      paragraph(fmt::format("{} of {} lie beyond the old limits.",
                            counted(diff.keys.size(), "number"), with_thousands(diff.compared))));
  TableBlock table;
  table.columns = {{"key", Align::kLeft}, {"runs from", Align::kLeft}, {"before"}, {"after"}};
  for (size_t i = 0; i < std::min(diff.keys.size(), kShownKeys); ++i) {
    const KeyChange& change = diff.keys[i];
    const auto [before, after] = number_texts(change);
    table.rows.push_back({change.key, std::string(to_string(change.draw)), before, after});
  }
  if (diff.keys.size() > kShownKeys) {
    table.notes.push_back(fmt::format("+{} more", diff.keys.size() - kShownKeys));
  }
  if (!table.rows.empty()) blocks.push_back(lockstep::table(table));
  return to_text(blocks);
}

}  // namespace lockstep
