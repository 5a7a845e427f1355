// See error_growth.h.
#include "analysis/report/error_growth.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "analysis/findings/step_evidence.h"

namespace lockstep {
namespace {

constexpr int64_t kStepsLookedAt = 5;

double relative(double error_sq, double whole_sq) {
  return whole_sq > 0 ? std::sqrt(error_sq / whole_sq) : std::numeric_limits<double>::quiet_NaN();
}

// The last site of each layer, in the order of the layers' last sites.
std::vector<LayerError> errors_of(const SiteTable& sites, const StepEvidence& step, Role role) {
  std::vector<LayerError> out;
  for (const Site& site : sites.sites) {
    if (site.role != role || site.point != Point::kOutput || !is_in_graph(site)) continue;
    const auto i = static_cast<size_t>(site.id);
    const auto& [stats, error] = std::tie(step[i].stats, step[i].error);
    if (stats.count == 0 || site.layer.empty()) continue;
    std::erase_if(out, [&](const LayerError& one) { return one.layer == site.layer; });
    // Errors leave out what is not finite: for such a tensor they would be too small.
    const double known = step.nonfinite(i) ? std::numeric_limits<double>::quiet_NaN() : 1;
    out.push_back({.layer = site.layer,
                   .site = site.id,
                   .total = known * relative(error.err_sq, error.ref_sq),
                   .local = known * relative(stats.round_err_sq, stats.sum_sq)});
  }
  return out;
}

}  // namespace

void ErrorGrowthTally::on_step(const StepRecord& record) {
  if (growth_ || record.step >= kStepsLookedAt || !run_.has_same_weights(record.step)) return;
  const LaneStep& lane = record.lanes[static_cast<size_t>(lane_)];
  if (!lane.alive) return;
  ErrorGrowth growth{.step = record.step,
                     .forward = errors_of(run_.sites, lane.sites, Role::kActivation),
                     .backward = errors_of(run_.sites, lane.sites, Role::kGradActivation)};
  if (!growth.forward.empty()) growth_ = std::move(growth);
}

}  // namespace lockstep
