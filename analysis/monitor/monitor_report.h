// All data of a report of a monitored run, read from its file once: courses, alarms, and what the
// exponent histograms say of formats that the run did not use. Nothing was replayed, so nothing is
// judged.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "analysis/monitor/alarms.h"
#include "analysis/ranges/scale_interval.h"
#include "emulation/format/format.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

// One site over the measured steps. Shares: of the nonzero values of all of them.
struct LiveSiteReport {
  int32_t site = -1;
  uint64_t count = 0, zeros = 0, nonfinite = 0;
  double largest = 0, last_largest = 0;  // of a step, without the loss scale; largest: finite
  // Octaves below the largest number of the format that holds it, as computed: in the step with the
  // fewest, and in the last measured one; NaN: unknown format, or never finite.
  double least_headroom = 0, last_headroom = 0;
  RangeSample sample;  // without the loss scale
};

// What FP8 would do to the operands of a layer's products.
struct Fp8Site {
  int32_t site = -1;
  std::string format;  // fp8_e4m3 for the forward pass, fp8_e5m2 for gradients
  // Share of the nonzero values that become zero with one scale for the tensor that the largest
  // value of each step fills: an upper limit for scales by row or block, which fit better.
  double zeroed = 0;
  // Largest share of a measured step's values in octaves above the largest value of the 16 measured
  // steps before: delayed scaling saturates them.
  double saturated = 0;
};

// The updates of one weight, over the measured steps.
struct LiveUpdate {
  int32_t site = -1;
  double relative = 0;  // norm of the update over that of the weight, in the last measured step
  double first_stagnant = 0, last_stagnant = 0, last_stagnant_bf16 = 0;  // shares of its elements
};

struct MonitorReport {
  std::string path, data, damage;
  int64_t every = 1;
  std::vector<int64_t> measured;  // steps
  SiteTable sites;
  std::vector<std::string> formats;  // by site
  // By step; NaN: not known.
  std::vector<double> loss, scale, gradient_norm, lr, seconds;
  std::vector<int64_t> skips;
  std::vector<double> update_norm, weight_norm;  // by measured step
  std::vector<LiveAlarm> alarms;
  std::vector<LiveSiteReport> places;  // measured ones, in execution order
  std::vector<Fp8Site> fp8;
  std::vector<LiveUpdate> updates;
  std::vector<RangeTable> ranges;  // fp16, then the FP8 formats
  int64_t steps() const { return static_cast<int64_t>(loss.size()); }
  const Site& site(int32_t id) const { return sites.sites[static_cast<size_t>(id)]; }
};

// Requires: run.is_live(). Cost: reads the narrow rows of every step, all rows of measured ones.
MonitorReport read_monitor_report(const RunFile& run);

}  // namespace lockstep
