// Compares the parts of two reports.
#include "analysis/report/report_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace lockstep {
namespace {

std::vector<LaneInfo> lanes_of(const Report& report) {
  std::vector<LaneInfo> lanes;
  for (const LaneReport& lane : report.lanes) lanes.push_back(lane.info);
  return lanes;
}

LaneComparison compare_lanes(const ReportPair& pair, const Match& match) {
  LaneComparison out{.lanes = match};
  if (match.before < 0 || match.after < 0) return out;
  const LaneReport &before = pair.lane_before(out), &after = pair.lane_after(out);
  out.change = change_of(before.judgement.verdict, after.judgement.verdict);
  out.findings = match_findings(before.findings, after.findings, pair.before.sites,
                                pair.after.sites, pair.changes.same_graph());
  out.policy = policy_change(before.info.policy_text, after.info.policy_text);
  out.shares = share_changes(before.health, after.health);
  return out;
}

}  // namespace

ReportPair compare_reports(Report before, Report after) {
  ReportPair pair{.before = std::move(before),
                  .after = std::move(after),
                  .before_name = "",
                  .after_name = "",
                  .changes = {}};
  const auto file_name = [](const Report& report) {
    return std::filesystem::path(report.path).filename().string();
  };
  const bool differ = file_name(pair.before) != file_name(pair.after);
  pair.before_name = differ ? file_name(pair.before) : pair.before.path;
  pair.after_name = differ ? file_name(pair.after) : pair.after.path;
  RunComparison& changes = pair.changes;
  if (!same_places(pair.before.sites, pair.after.sites)) {
    changes.graph_difference =
        fmt::format("{} sites of {} in {}, {} of {} in {}", pair.before.sites.sites.size(),
                    pair.before.options.model, pair.before_name, pair.after.sites.sites.size(),
                    pair.after.options.model, pair.after_name);
  }
  changes.settings = setup_differences(pair.before.options, pair.after.options);
  if (pair.before.steps != pair.after.steps) {
    changes.settings.push_back(
        {"steps", fmt::format("{}", pair.before.steps), fmt::format("{}", pair.after.steps)});
  }
  for (const Match& match : match_lanes(lanes_of(pair.before), lanes_of(pair.after))) {
    changes.lanes.push_back(compare_lanes(pair, match));
  }
  std::ranges::stable_sort(changes.lanes, {}, [](const LaneComparison& lanes) {
    constexpr LaneChange kOrder[] = {LaneChange::kWorse, LaneChange::kBetter, LaneChange::kSame,
                                     LaneChange::kNotComparable};
    return std::ranges::find(kOrder, lanes.change) - kOrder;
  });
  return pair;
}

}  // namespace lockstep
