// A run in a few numbers: the metrics (metrics.h) of every lane, by what they are of. Read from a
// run file once; plain data afterwards.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "analysis/check/metrics.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

// `value`: NaN: not measured; -infinity: an error of exactly 0, in octaves.
// `trials`: of a share: what it is a share of; of an error: the values it is the mean square of.
struct Measured {
  double value = std::numeric_limits<double>::quiet_NaN();
  double trials = 0;
  bool is_there() const { return !std::isnan(value); }
  bool is_exact() const { return std::isinf(value); }
};

// Quantiles of the exponents of a site's nonzero values, log2 |x|, each bin's values spread evenly
// over it: 1/18, 3/18, ..., 17/18.
inline constexpr size_t kQuantiles = 9;
using ExponentQuantiles = std::array<double, kQuantiles>;
// Mean distance of the quantiles: the Wasserstein distance between the distributions, in octaves.
double distance(const ExponentQuantiles& a, const ExponentQuantiles& b);

struct LaneSummary {
  std::string name;
  bool is_reference = false;
  // By MetricId, then by what it is of: site, parameter, group, or one. Empty: not measured.
  std::vector<std::vector<Measured>> values;
  // The reference's quantiles, by site: MetricId::kExponents is their distance from a baseline's.
  std::vector<ExponentQuantiles> exponents;
  std::vector<bool> has_exponents;
  std::vector<std::string> findings;   // kinds, each once
  std::vector<std::string> step_bits;  // by step: hash of all bits_hash values and the loss

  const Measured* find(MetricId id, size_t subject) const;
};

struct RunSummary {
  int64_t steps = 0;
  std::vector<LaneSummary> lanes = {};
};

// Twins are left out: they are the noise, and the nudged runs of an ensemble show more of it.
// Cost: reads every step of every lane.
RunSummary summarize(const RunFile& run);

// The numbers of one step, NaN where there are none: for the first step in which one is beyond its
// limit.
struct SiteMetric {
  MetricId metric;
  size_t site;
};
std::vector<double> metrics_at(const RunFile& run, int lane, int64_t step,
                               const std::vector<SiteMetric>& asked);

}  // namespace lockstep
