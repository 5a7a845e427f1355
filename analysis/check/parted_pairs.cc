// See parted_pairs.h.
#include "analysis/check/parted_pairs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "analysis/check/metrics.h"

namespace lockstep {
namespace {

// FP32's sizes in the first step.
bool first_values_agree(const JudgedRun& run, const Ensemble& ensemble, double factor,
                        size_t before_site, size_t after_site) {
  const size_t lane = run.reference_lane();
  if (lane >= ensemble.lanes.size()) return false;
  const Band* before = ensemble.lanes[lane].find(MetricId::kFirstMagnitude, before_site);
  const Measured* after = run.lane_now(lane).find(MetricId::kFirstMagnitude, after_site);
  const double floor = metric_row(MetricId::kFirstMagnitude).floor;
  return before != nullptr && after != nullptr &&
         std::fabs(before->centre - after->value) <= std::max(floor, factor * before->spread);
}

// A doubtful pair is none unless FP32's values agree; with other seeds they cannot.
void part_doubtful_pairs(const JudgedRun& run, const Ensemble& ensemble, Draw draw, double factor,
                         std::set<size_t>& parted) {
  if (!run.places.has_changed_code) return;
  for (size_t s = 0; s < run.match.sites.size(); ++s) {
    if (!run.places.doubtful[s]) continue;
    const auto at = static_cast<size_t>(run.match.sites.after_of(s));
    if (draw == Draw::kSame && first_values_agree(run, ensemble, factor, s, at)) continue;
    parted.insert(s);
  }
}

// Operands that have changed places: `b + a` for `a + b`. Of an op for which the order matters,
// all that follows is still judged.
void part_commuted_operands(const JudgedRun& run, const Ensemble& ensemble, double factor,
                            std::set<size_t>& parted) {
  const std::vector<SiteFacts>& sites = run.baseline.run.sites;
  for (size_t s = 0; s + 1 < sites.size(); ++s) {
    const SiteFacts &one = sites[s], &two = sites[s + 1];
    if (one.point != "operand" || two.point != "operand" || one.op != two.op) continue;
    if (one.layer != two.layer) continue;
    const int first = run.match.sites.after_of(s), second = run.match.sites.after_of(s + 1);
    if (first < 0 || second < 0) continue;
    const auto agree = [&](size_t before, int after) {
      return first_values_agree(run, ensemble, factor, before, static_cast<size_t>(after));
    };
    if (agree(s, first) || !agree(s, second) || !agree(s + 1, first)) continue;
    parted.insert({s, s + 1});
  }
}

}  // namespace

std::set<size_t> parted_pairs(const JudgedRun& run, const Ensemble& ensemble, Draw draw,
                              double alpha) {
  std::set<size_t> parted;
  const double factor = limit_factor(ensemble.runs, alpha, run.match.sites.size());
  part_doubtful_pairs(run, ensemble, draw, factor, parted);
  if (draw == Draw::kSame) part_commuted_operands(run, ensemble, factor, parted);
  return parted;
}

}  // namespace lockstep
