// The layers whose lost shares changed most.
#include <fmt/format.h>

#include <algorithm>

#include "reports/pair/change_sentence.h"
#include "reports/pair/pair_page.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

constexpr size_t kShownChanges = 12;  // of a lane

Blocks write_layers(const ReportPair& pair) {
  Blocks out;
  if (!pair.changes.same_graph()) return out;
  for (const LaneComparison& lanes : pair.changes.lanes) {
    if (lanes.shares.empty() || !is_shown(pair, lanes)) continue;
    const std::string name = pair.lane_name(lanes);
    TableBlock table;
    table.name = name;
    table.columns = {{"layer", Align::kLeft},
                     {"role", Align::kLeft},
                     {"share", Align::kLeft},
                     {pair.before_name},
                     {pair.after_name}};
    for (size_t i = 0; i < std::min(kShownChanges, lanes.shares.size()); ++i) {
      const ShareChange& change = lanes.shares[i];
      table.rows.push_back({change.layer.empty() ? "-" : change.layer,
                            std::string(to_string(change.role)), std::string(change.what),
                            percent_cell(change.before), percent_cell(change.after)});
    }
    if (lanes.shares.size() > kShownChanges) {
      table.notes = {
          fmt::format("and {}.", counted(lanes.shares.size() - kShownChanges, "smaller change"))};
    }
    out.push_back(paragraph(name + ":"));
    out.push_back(lockstep::table(std::move(table)));
  }
  if (out.empty()) return out;
  out.insert(out.begin(),
             paragraph(fmt::format("Each row is the worst site of a layer and role in each run, "
                                   "over all its steps before its loss was not finite; changes of "
                                   "{} and more.",
                                   percent(kLeastShareChange))));
  return out;
}

}  // namespace

PairSection layers_pair_section() {
  return {.name = "layers", .title = "Layers that lose more or less", .write = write_layers};
}

}  // namespace lockstep
