// Options and lines of policies that differ, and how the environment does.
#include <fmt/format.h>

#include "reports/pair/pair_page.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

Blocks write_settings(const ReportPair& pair) {
  TableBlock table;
  table.columns = {
      {"setting", Align::kLeft}, {pair.before_name, Align::kLeft}, {pair.after_name, Align::kLeft}};
  for (const SetupDifference& d : pair.changes.settings) {
    table.rows.push_back({d.name, or_dash(d.baseline), or_dash(d.run)});
  }
  for (const LaneComparison& lanes : pair.changes.lanes) {
    const PolicyChange& policy = lanes.lanes.policy;
    if (policy.before.empty() && policy.after.empty()) continue;
    table.rows.push_back({"policy of " + pair.lane_name(lanes), or_dash(join(policy.before, "; ")),
                          or_dash(join(policy.after, "; "))});
  }
  for (const EnvironmentDifference& d : pair.changes.environment) {
    if (!d.before.empty()) table.rows.push_back({d.name, d.before, or_dash(d.after)});
  }
  if (table.rows.empty()) {
    return {paragraph("None: options, policies and environment are the same.")};
  }
  return {lockstep::table(std::move(table))};
}

}  // namespace

PairSection settings_pair_section() {
  return {.name = "settings", .title = "Settings that differ", .write = write_settings};
}

}  // namespace lockstep
