// The statistics of one site in one step of one lane, as plain data.
#pragma once

#include "emulation/stats/accumulator_health.h"
#include "emulation/stats/decision_stats.h"
#include "emulation/stats/tensor_stats.h"
#include "emulation/stats/update_stats.h"
#include "src/execute/live_stats.h"
#include "src/execute/loss_effect.h"

namespace lockstep {

// What is added to a stored value: at update sites, at the outputs that are buffers' new values,
// and at parameters' gradients that several micro-batches add up, in the units of the site.
struct UpdateRecord {
  bool measured = false;
  UpdateStats stats;

  void merge(const UpdateRecord& other) {
    measured = measured || other.measured;
    stats.merge(other.stats);
  }
};

struct SiteRecord {
  bool measured = false;  // false: this lane lacks the site (count 0, NaN moments)
  bool counted = false;   // instead: only the counts in `stats` are set, see CountMeasurer
  double scale = 1;       // the factor by which the values are scaled
  TensorStats stats;
  ErrorStats error;
  AccumulatorHealth health;  // at accumulator sites, in steps that sample sums
  LossEffect effect;         // of the rounding, in steps that sample sums
  UpdateRecord update;
  DecisionStats decisions;  // at operand 0 of a recorded decision
  LiveStats live;           // of a monitor's lane
  // Adds another micro-batch of the same step. If its scale differs (scaled casts), its moments are
  // converted to this scale; the histograms are added unchanged.
  void merge(const SiteRecord& other);
};
// The error of the reference against itself: zero.
ErrorStats error_of_reference(const TensorStats& stats);

}  // namespace lockstep
