// See baseline_text.h.
#include "reports/baseline_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/text_writer.h"
#include "src/core/counted.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr size_t kShownKeys = 30;

std::string number(double x) {
  return std::isnan(x) ? "-" : fmt::format("{:.6g}", x);
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
    table.rows.push_back({change.key, std::string(to_string(change.draw)), number(change.before),
                          number(change.after)});
  }
  if (diff.keys.size() > kShownKeys) {
    table.notes.push_back(fmt::format("+{} more", diff.keys.size() - kShownKeys));
  }
  if (!table.rows.empty()) blocks.push_back(lockstep::table(table));
  return to_text(blocks);
}

}  // namespace lockstep
