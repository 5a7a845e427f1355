// See lane_sums.h.
#include "analysis/report/lane_sums.h"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

double swamped_rate(const AccumulatorHealth& h) {
  return h.addends > 0 ? static_cast<double>(h.swamped) / static_cast<double>(h.addends) : 0;
}
double relative_error(const AccumulatorHealth& h) {
  return h.exact_sq > 0 ? std::sqrt(h.err_sq / h.exact_sq) : 0;
}

}  // namespace

std::optional<LaneSums> lane_sums(const LaneReport& lane) {
  LaneSums out;
  AccumulatorHealth all;
  double error_sq = 0;
  int ops = 0;
  for (size_t site = 0; site < lane.sums.size(); ++site) {
    const AccumulatorHealth& here = lane.sums[site];
    if (here.compared == 0 || here.addends == 0) continue;  // other sums: see findings
    all.merge(here);
    out.worst_error = std::max(out.worst_error, relative_error(here));
    error_sq += relative_error(here) * relative_error(here);
    if (ops == 0 || swamped_rate(here) > out.most_swamped) {
      out.most_swamped_site = site;
      out.most_swamped = swamped_rate(here);
    }
    ops += 1;
  }
  if (ops == 0) return std::nullopt;
  out.compared = all.compared;
  out.error = std::sqrt(error_sq / ops);
  out.swamped = swamped_rate(all);
  return out;
}

}  // namespace lockstep
