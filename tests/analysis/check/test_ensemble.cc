// How wide an ensemble makes the bands of a lane.
#include "analysis/check/ensemble.h"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "analysis/check/metrics.h"

namespace lockstep {
namespace {

TEST_CASE("errors of other seeds: no site is much steadier than its lane") {
  const Band exact{.centre = -std::numeric_limits<double>::infinity()};
  Ensemble ensemble{.runs = 13};
  LaneBands& lane = ensemble.lanes.emplace_back();
  lane.bands.resize(metrics().size());
  std::vector<Band>& errors = lane.bands[static_cast<size_t>(MetricId::kError)];
  errors = {{-8, 0.1}, {-8, 1}, {-8, 2}, exact, Band{}};
  lane.bands[static_cast<size_t>(MetricId::kRounding)] = {{-8, 0.1}, {-8, 1}, {-8, 2}};
  pool_drift(ensemble);
  CHECK(errors[0].spread == 0.5);
  CHECK(errors[1].spread == 1);
  CHECK(errors[2].spread == 2);
  CHECK(errors[3].is_exact());
  CHECK_FALSE(errors[4].is_there());
  CHECK(lane.bands[static_cast<size_t>(MetricId::kRounding)][0].spread == 0.1);
}

TEST_CASE("an ensemble without errors stays as it is") {
  Ensemble ensemble;
  pool_drift(ensemble);
  CHECK(ensemble.lanes.empty());
}

}  // namespace
}  // namespace lockstep
