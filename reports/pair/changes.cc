// The first screen: a sentence for each lane that says what changed, and what each run says itself.
#include <fmt/format.h>

#include <algorithm>

#include "reports/pair/change_sentence.h"
#include "reports/pair/pair_page.h"

namespace lockstep {
namespace {

Tone tone_of(LaneChange change) {
  switch (change) {
    case LaneChange::kBetter:
      return Tone::kGood;
    case LaneChange::kWorse:
      return Tone::kBad;
    default:
      return Tone::kPlain;
  }
}

void add_verdict(const std::string& name, const Report& report, Blocks& out) {
  const auto verdict = std::ranges::find(sections(), "verdict", &Section::name);
  out.push_back(paragraph(fmt::format("What {} says itself:", name)));
  for (Block& block : verdict->write(report)) out.push_back(std::move(block));
}

Blocks write_changes(const ReportPair& pair) {
  Blocks out;
  for (const LaneComparison& lanes : pair.changes.lanes) {
    if (!is_shown(pair, lanes)) continue;
    std::string text = change_sentence(pair, lanes);
    const size_t end = text.size() - 1;
    const size_t toned = lanes.change == LaneChange::kBetter || lanes.change == LaneChange::kWorse
                             ? std::min(end, text.find(';'))
                             : pair.lane_name(lanes).size();
    out.push_back(paragraph(std::move(text), tone_of(lanes.change), toned));
  }
  if (out.empty())
    out.push_back(paragraph("Neither run has a lane to compare with the reference."));
  if (!pair.changes.same_graph()) {
    out.push_back(
        paragraph(fmt::format("The step graphs differ ({}), so only outcomes are compared, and "
                              "findings by the names of "
                              "their places.",
                              pair.changes.graph_difference)));
  }
  add_verdict(pair.before_name, pair.before, out);
  add_verdict(pair.after_name, pair.after, out);
  return out;
}

}  // namespace

PairSection changes_pair_section() {
  return {.name = "changes", .title = "What changed", .write = write_changes};
}

}  // namespace lockstep
