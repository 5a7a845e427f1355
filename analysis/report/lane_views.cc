// See lane_views.h.
#include "analysis/report/lane_views.h"

namespace lockstep {

LaneViewTally::LaneViewTally(const RunFile& run, int lane)
    : run_(run),
      lane_(lane),
      exponents_(run, lane),
      map_(run.sites(), run.steps()),  // the same columns for all lanes
      growth_(view_of(run), lane) {}

void LaneViewTally::add(const StepRecord& record, std::span<const NonfiniteCounts> nonfinite) {
  exponents_.on_step(record);
  if (lane_ == kReferenceIndex) return;
  growth_.on_step(record);
  if (nonfinite.empty()) return;
  map_.add(record.step, record.lanes[static_cast<size_t>(lane_)].sites, record.lanes.front().sites,
           nonfinite);
}

LaneViews LaneViewTally::views(const std::vector<Finding>& findings) const {
  LaneViews views;
  views.exponents = exponents_.exponents();
  views.exponent_steps = exponents_.steps();
  if (lane_ == kReferenceIndex) return views;
  views.map = map_.map();
  views.growth = growth_.growth();
  for (const Finding& finding : findings) {
    if (views.chains.size() == kMostChains) break;
    if (finding.site >= 0) views.chains.push_back(fault_chain(run_, lane_, finding));
  }
  return views;
}

}  // namespace lockstep
