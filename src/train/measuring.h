// Which steps of a run are measured, and what each of them records. Plain data.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/execute/step_measuring.h"

namespace lockstep {

struct Measuring {
  // False: nothing is ever measured, and records hold only loss, scale and time. For benchmarks; a
  // run file needs the first step.
  bool on = true;
  // Steps between measured ones; 0: only the first step. A step in which a loss, a gradient, a
  // buffer, or a weight of a narrower range than FP32 becomes infinite or NaN in some lane is
  // measured, whatever its number: it is computed again from the same state. The step after it
  // would show the consequence, not the origin.
  int64_t statistics_every = 1;
  // The other steps record counts, instead of nothing.
  bool counts_between = false;
  // Steps between kept histograms and between samples of the sums of products (0: never). Each
  // takes the first measured step at or after its multiples.
  int64_t histogram_every = 10, sums_every = 50;

  bool is_due(int64_t step) const {
    return on && (statistics_every > 0 ? step % statistics_every == 0 : step == 0);
  }
  SiteDetail detail(int64_t step) const {
    if (is_due(step)) return SiteDetail::kEverything;
    return on && counts_between ? SiteDetail::kCounts : SiteDetail::kNothing;
  }
  bool keeps_histogram(int64_t step) const { return is_first_of(histogram_every, step); }
  bool samples_sums(int64_t step) const { return sums_every > 0 && is_first_of(sums_every, step); }
  // How many steps before this one sampled sums. Requires: samples_sums(step).
  int64_t sample_number(int64_t step) const { return step / period(sums_every); }

 private:
  // A window as long as the distance between measured steps holds one of them.
  bool is_first_of(int64_t every, int64_t step) const {
    return is_due(step) && step % period(every) < std::max<int64_t>(statistics_every, 1);
  }
  int64_t period(int64_t every) const { return std::max(every, statistics_every); }
};

}  // namespace lockstep
