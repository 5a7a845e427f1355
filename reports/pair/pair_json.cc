// See pair_json.h.
#include "reports/pair/pair_json.h"

#include <nlohmann/json.hpp>

#include "reports/pair/change_sentence.h"
#include "reports/run/finding_json.h"
#include "reports/run/report_json.h"
#include "reports/writers/json_text.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

ordered_json name_of(const Report& report, int lane) {
  if (lane < 0) return nullptr;
  return report.lanes[static_cast<size_t>(lane)].info.name;
}

ordered_json lanes_json(const ReportPair& pair, const LaneComparison& lanes) {
  ordered_json out = {{"before", name_of(pair.before, lanes.lanes.before)},
                      {"after", name_of(pair.after, lanes.lanes.after)},
                      {"change", to_string(lanes.change)},
                      {"policy_before", lanes.lanes.policy.before},
                      {"policy_after", lanes.lanes.policy.after}};
  if (is_shown(pair, lanes)) out["sentence"] = change_sentence(pair, lanes);
  for (const char* key : {"findings_gone", "findings_new", "findings_in_both"}) {
    out[key] = ordered_json::array();
  }
  for (const FindingPair& match : lanes.findings) {
    const bool is_old = match.after < 0;
    const LaneReport& lane = is_old ? pair.lane_before(lanes) : pair.lane_after(lanes);
    const auto index = static_cast<size_t>(is_old ? match.before : match.after);
    const char* key = is_old             ? "findings_gone"
                      : match.before < 0 ? "findings_new"
                                         : "findings_in_both";
    out[key].push_back(finding_json(is_old ? pair.before : pair.after, lane, lane.findings[index]));
  }
  out["layers"] = ordered_json::array();
  for (const ShareChange& change : lanes.shares) {
    out["layers"].push_back({{"layer", change.layer},
                             {"role", to_string(change.role)},
                             {"share", change.what},
                             {"before", json_number(change.before)},
                             {"after", json_number(change.after)}});
  }
  return out;
}

}  // namespace

std::string pair_json(const ReportPair& pair) {
  ordered_json out = {{"format", "lockstep-report-pair"},
                      {"format_version", kPairJsonVersion},
                      {"same_graph", pair.changes.same_graph()}};
  out["settings"] = ordered_json::array();
  for (const SetupDifference& d : pair.changes.settings) {
    out["settings"].push_back({{"name", d.name}, {"before", d.baseline}, {"after", d.run}});
  }
  out["lanes"] = ordered_json::array();
  for (const LaneComparison& lanes : pair.changes.lanes) {
    out["lanes"].push_back(lanes_json(pair, lanes));
  }
  out["before"] = report_object(pair.before);
  out["after"] = report_object(pair.after);
  return json_page(out);
}

}  // namespace lockstep
