// Findings that are gone, new, or in both runs.
#include <fmt/format.h>

#include "analysis/findings/finding_kinds.h"
#include "reports/pair/pair_page.h"

namespace lockstep {
namespace {

std::string steps_text(const Finding& f) {
  return f.first_step == f.last_step ? fmt::format("{}", f.first_step)
                                     : fmt::format("{}..{}", f.first_step, f.last_step);
}

void add_row(const std::string& change, const Report& report, const LaneReport& lane,
             const Finding& finding, TableBlock& table) {
  table.rows.push_back({change, lane.info.name, std::string(row_of(finding.kind).name),
                        finding.site < 0 ? "-" : place_text(report.site(finding.site)),
                        steps_text(finding)});
}

Blocks write_findings(const ReportPair& pair) {
  TableBlock table;
  constexpr bool kOptional = true;
  table.columns = {{"change", Align::kLeft},
                   {"lane", Align::kLeft},
                   {"finding", Align::kLeft},
                   {"where", Align::kLeft},
                   {"steps", Align::kRight, kOptional}};
  for (const LaneComparison& lanes : pair.changes.lanes) {
    for (const FindingPair& match : lanes.findings) {
      const bool is_new = match.before < 0;
      const std::string change = is_new ? "new" : match.after < 0 ? "gone" : "in both";
      if (match.after >= 0) {
        const LaneReport& lane = pair.lane_after(lanes);
        add_row(change, pair.after, lane, lane.findings[static_cast<size_t>(match.after)], table);
      } else {
        const LaneReport& lane = pair.lane_before(lanes);
        add_row(change, pair.before, lane, lane.findings[static_cast<size_t>(match.before)], table);
      }
    }
  }
  if (table.rows.empty()) return {paragraph("None in any lane that both runs have.")};
  table.notes = {
      fmt::format("gone: in {} only. new: in {} only. Lanes of one run only are left "
                  "out.",
                  pair.before_name, pair.after_name)};
  return {lockstep::table(std::move(table))};
}

}  // namespace

PairSection findings_pair_section() {
  return {.name = "findings", .title = "Findings gone and new", .write = write_findings};
}

}  // namespace lockstep
