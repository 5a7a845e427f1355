// Errors of the sums of products, by lane: error against the exact sums, and the share of the
// products too small to change the sum they are added to (swamping).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/run/section.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

double swamped_rate(const AccumulatorHealth& h) {
  return h.addends > 0 ? static_cast<double>(h.swamped) / static_cast<double>(h.addends) : 0;
}
double relative_error(const AccumulatorHealth& h) {
  return h.exact_sq > 0 ? std::sqrt(h.err_sq / h.exact_sq) : 0;
}

Cell error_cell(double error) {
  return {fmt::format("{:.2g}", error), error};
}

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
    if (lane.is_twin()) continue;
    AccumulatorHealth all;
    const Site* worst = nullptr;
    double worst_error = 0, worst_rate = 0, error_sq = 0;
    int ops = 0;
    for (size_t s = 0; s < lane.sums.size(); ++s) {
      const AccumulatorHealth& here = lane.sums[s];
      if (here.compared == 0) continue;
      all.merge(here);
      worst_error = std::max(worst_error, relative_error(here));
      error_sq += relative_error(here) * relative_error(here);
      ops += 1;
      if (worst == nullptr || swamped_rate(here) > worst_rate) {
        worst = &report.sites.sites[s];
        worst_rate = swamped_rate(here);
      }
    }
    if (worst == nullptr) continue;
    table.rows.push_back({lane.info.name, count_cell(all.compared),
                          error_cell(std::sqrt(error_sq / ops)), error_cell(worst_error),
                          percent_cell(swamped_rate(all)), percent_cell(worst_rate),
                          worst->layer + " " + worst->op});
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
