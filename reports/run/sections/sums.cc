// Errors of the sums of products, by lane: error against the exact sums, and the share of the
// products too small to change the sum they are added to (swamping).
#include <fmt/format.h>

#include <optional>

#include "analysis/report/lane_sums.h"
#include "reports/run/section.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

Blocks write_sums(const Report& report) {
  TableBlock table;
  table.columns = {{"lane", Align::kLeft},
                   {"samples"},
                   {"error"},
                   {"worst error"},
                   {"swamped"},
                   {"most swamped"},
                   {"most swamped op", Align::kLeft}};
  for (const LaneReport& lane : report.lanes) {
    const std::optional<LaneSums> sums = lane_sums(lane);
    if (lane.is_twin() || !sums) continue;
    const Site& worst = report.sites.sites[sums->most_swamped_site];
    table.rows.push_back({lane.info.name, count_cell(sums->compared), error_cell(sums->error),
                          error_cell(sums->worst_error), percent_cell(sums->swamped),
                          percent_cell(sums->most_swamped), worst.layer + " " + worst.op});
  }
  if (table.rows.empty()) return {paragraph("No sums of products were sampled.")};
  table.notes = {
      "64 outputs of every sum of products, drawn in every sampled step and summed again exactly. "
      "error: for an op, the root of the sum of squares of computed minus exact, over that of "
      "exact; for a lane, the root mean square over its ops. swamped: share of the products that "
      "are smaller than half an ulp of the sum before them, in the accumulator's format. worst, "
      "most: of one op."};
  return {table};
}

}  // namespace

Section sums_section() {
  return {.name = "sums", .title = "Sums of products", .write = write_sums};
}

}  // namespace lockstep
