// See error_growth.h.
#include "analysis/report/error_growth.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/findings/intended_infinities.h"
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
    if (step.count[i] == 0 || site.layer.empty()) continue;
    std::erase_if(out, [&](const LayerError& one) { return one.layer == site.layer; });
    // Errors leave out what is not finite: for such a tensor they would be too small.
    const double known = step.nonfinite(i) ? std::numeric_limits<double>::quiet_NaN() : 1;
    out.push_back({.layer = site.layer,
                   .site = site.id,
                   .total = known * relative(step.err_sq[i], step.ref_sq[i]),
                   .local = known * relative(step.round_err_sq[i], step.sum_sq[i])});
  }
  return out;
}

}  // namespace

std::optional<ErrorGrowth> error_growth(const RunFile& run, int lane) {
  if (run.lanes()[static_cast<size_t>(lane)].is_reference) return std::nullopt;
  for (int64_t step = 0; step < std::min(run.steps(), kStepsLookedAt); ++step) {
    if (!has_same_weights(run, step)) break;
    const StepEvidence evidence = read_evidence(run, lane, step);
    ErrorGrowth growth{.step = step,
                       .forward = errors_of(run.sites(), evidence, Role::kActivation),
                       .backward = errors_of(run.sites(), evidence, Role::kGradActivation)};
    if (!growth.forward.empty()) return growth;
  }
  return std::nullopt;
}

}  // namespace lockstep
