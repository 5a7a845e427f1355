// Passes the parts of two reports to analysis/pair; the sentence of a change.
#include "reports/pair/report_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "reports/words/lane_sentence.h"
#include "reports/words/why_unjudged.h"

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

// What the lane did, after its name: "broke at step 39", "trains as fp32 does".
std::string deed_of(const Report& report, const LaneReport& lane) {
  const std::string& reference = report.reference().info.name;
  switch (lane.judgement.verdict) {
    case Verdict::kBroke: {
      const int64_t step = lane_break_step(lane);
      return step >= 0 ? fmt::format("broke at step {}", step) : "broke";
    }
    case Verdict::kFine:
      return fmt::format("trains as {} does", reference);
    case Verdict::kUnclear:
      return fmt::format("may train worse than {} does", reference);
    case Verdict::kWorse:
      return fmt::format("trains worse than {} does", reference);
    case Verdict::kStalled:
      return "does not learn";
    case Verdict::kTooShort:
    case Verdict::kUnjudged:
      return fmt::format("is not judged ({})", to_string(why_unjudged(report)));
    default:
      return "is not judged";
  }
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

std::string change_sentence(const ReportPair& pair, const LaneComparison& lanes) {
  if (!lanes.lanes.is_pair()) {
    const bool is_new = lanes.lanes.before < 0;
    const LaneReport& lane = is_new ? pair.lane_after(lanes) : pair.lane_before(lanes);
    return fmt::format("{} is in {} only, where it {}.", lane.info.name,
                       is_new ? pair.after_name : pair.before_name,
                       deed_of(is_new ? pair.after : pair.before, lane));
  }
  const LaneReport &before = pair.lane_before(lanes), &after = pair.lane_after(lanes);
  const std::string old_deed = deed_of(pair.before, before);
  const std::string deed = deed_of(pair.after, after);
  const bool same_name = before.info.name == after.info.name;
  if (same_name && old_deed == deed) {
    return fmt::format("{} {} in both runs.", before.info.name, deed);
  }
  return fmt::format("{} {} in {}; in {} {} {}.", before.info.name, old_deed, pair.before_name,
                     pair.after_name,
                     same_name ? "it" : after.info.name + ", which takes its place,", deed);
}

bool is_shown(const ReportPair& pair, const LaneComparison& lanes) {
  const auto counts = [](const Report& report, int lane) {
    if (lane < 0) return false;
    return has_sentence(report.lanes[static_cast<size_t>(lane)]);
  };
  return counts(pair.before, lanes.lanes.before) || counts(pair.after, lanes.lanes.after);
}

}  // namespace lockstep
