// The records of a step and of an evaluation. Plain data: statistics, never tensors.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "emulation/kernels/args/device_work.h"
#include "emulation/stats/watched_stats.h"
#include "src/execute/site_record.h"

namespace lockstep {

struct ScalerRecord {
  double scale = 1;  // used in this step
  bool found_inf = false, skipped = false;
  int32_t growth_tracker = 0;  // after the step
  int32_t culprit_site = -1;  // first site in execution order with a non-finite value, if found_inf
};
// Why a lane stopped before the others. Run files store the numbers.
enum class DeathCause : int8_t {
  kAlive = 0,
  kWeights = 1,     // no longer finite
  kLossScaler = 2,  // the scaler stops training at the scale's minimum
};
struct LaneStep {
  bool alive = true;  // false: died earlier; of the rest only died_of is set
  DeathCause died_of = DeathCause::kAlive;
  double loss = 0;             // unscaled; the mean over the micro-batches
  std::vector<double> losses;  // the named ones, as loss_names()
  std::vector<double> lr;      // by parameter group
  double gradient_norm = std::numeric_limits<double>::quiet_NaN();  // before clipping by norm
  // By parameter, of the gradients that the optimizer uses, unscaled and clipped; NaN: there is
  // none. Only for captures, whose own lane has them; empty: not measured.
  std::vector<double> gradient_norms;
  double seconds = 0;  // of this lane's work; lanes may overlap
  int32_t attempts = 1;
  DeviceWork device;  // of all attempts; of the engine's device, if it has one
  // One per scaler (LaneDescription::scaler_losses), at least one (scale 1 without scaling); then
  // one per group, if groups skip on their own.
  std::vector<ScalerRecord> scalers;
  std::vector<SiteRecord> sites;  // by site id
  // As RunDescription::watched; the reference's say nothing. A value that this step's path does not
  // compute has count 0.
  std::vector<WatchedStats> watched;
};
// A step is skipped for all losses at once, so every scaler shows it.
inline bool is_skipped(const LaneStep& lane) {
  return !lane.scalers.empty() && lane.scalers.front().skipped;
}
struct StepRecord {
  int64_t step = 0;  // 0-based
  // False: records of sites are empty or hold counts alone (Measuring::detail).
  bool is_measured = true;
  std::vector<LaneStep> lanes;  // as RunDescription::lanes
};
struct EvaluationRecord {
  int64_t steps_done = 0;              // training steps before it
  std::vector<double> loss, accuracy;  // per lane, held-out mean; NaN for a dead lane
  int64_t example_count = 0;
};

}  // namespace lockstep
