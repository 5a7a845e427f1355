// Compares the parts of two reports.
#include "analysis/report/report_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace lockstep {
namespace {

RunFacts facts_in(const Report& report) {
  RunFacts facts;
  facts.options = report.options;
  facts.steps = report.steps;
  facts.environment = report.environment;
  std::vector<LaneInfo> lanes;
  for (const LaneReport& lane : report.lanes) lanes.push_back(lane.info);
  facts.lanes = lane_facts(lanes);
  facts.sites = site_facts(report.sites);
  return facts;
}

LaneComparison compare_lanes(const ReportPair& pair, const LanePair& lanes) {
  LaneComparison out{.lanes = lanes};
  if (!lanes.is_pair()) return out;
  const LaneReport &before = pair.lane_before(out), &after = pair.lane_after(out);
  out.change = change_of(before.judgement.verdict, after.judgement.verdict);
  out.findings = match_findings(before.findings, after.findings, pair.before.sites,
                                pair.after.sites, pair.changes.same_graph());
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
  RunMatch match = match_runs(facts_in(pair.before), facts_in(pair.after));
  if (!match.same_places) {
    changes.graph_difference =
        fmt::format("{} sites of {} in {}, {} of {} in {}", pair.before.sites.sites.size(),
                    pair.before.options.model, pair.before_name, pair.after.sites.sites.size(),
                    pair.after.options.model, pair.after_name);
  }
  changes.settings = std::move(match.settings);
  changes.environment = std::move(match.environment);
  if (pair.before.steps != pair.after.steps) {
    changes.settings.push_back(
        {"steps", fmt::format("{}", pair.after.steps), fmt::format("{}", pair.before.steps)});
  }
  for (const LanePair& lanes : match.lanes) changes.lanes.push_back(compare_lanes(pair, lanes));
  std::ranges::stable_sort(changes.lanes, {}, [](const LaneComparison& lanes) {
    constexpr LaneChange kOrder[] = {LaneChange::kWorse, LaneChange::kBetter, LaneChange::kSame,
                                     LaneChange::kNotComparable};
    return std::ranges::find(kOrder, lanes.change) - kOrder;
  });
  return pair;
}

}  // namespace lockstep
