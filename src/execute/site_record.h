// The statistics of one site in one step of one lane, as plain data.
#pragma once

#include "emulation/stats/accumulator_health.h"
#include "emulation/stats/tensor_stats.h"
#include "src/execute/loss_effect.h"

namespace lockstep {

struct SiteRecord {
  bool measured = false;  // false: this lane lacks the site (count 0, NaN moments)
  double scale = 1;       // the factor by which the values are scaled
  TensorStats stats;
  ErrorStats error;
  AccumulatorHealth health;  // at accumulator sites, in steps that sample sums
  LossEffect effect;         // of the rounding, in steps that sample sums
  // Adds another micro-batch of the same step. If its scale differs (scaled casts), its moments are
  // converted to this scale; the histograms are added unchanged.
  void merge(const SiteRecord& other);
};
// The error of the reference against itself: zero.
ErrorStats error_of_reference(const TensorStats& stats);

}  // namespace lockstep
