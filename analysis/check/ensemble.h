// The band of a metric: how far noise alone moves it from one run to another.
// An ensemble is some runs that are equally good versions of one: from weights moved by one ulp
// (the same batches), or from other seeds (other weights and batches). Of x_1 .. x_k, a metric's
// values in the k runs:
//
//   centre     their mean
//   spread     their standard deviation, widened where one value lies farther from the others than
//              normal ones do (heavy tails), and at least the scatter of a share p of n trials,
//              sqrt((p + 1/n) / n): none in n does not mean never; of an error that is the root
//              mean square of n values, that of a mean of n squares of normal ones, sqrt(2/n), in
//              octaves: runs that differ by an ulp may round alike
//   limit      centre +- t(k - 1, alpha / m) spread sqrt(1 + 1/k): the prediction interval of one
//              more value, where m metrics are judged at the family-wise error rate alpha
//              (Bonferroni), but at least the metric's own floor (metrics.h)
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/check/run_summary.h"

namespace lockstep {

// The fewest runs of which a spread can be taken.
inline constexpr size_t kFewestRuns = 3;
// Fewer members besides the run itself make wide limits.
inline constexpr int64_t kFewMembers = 5;

// An error that was exactly 0 in all runs has the centre -infinity.
struct Band {
  double centre = std::numeric_limits<double>::quiet_NaN(), spread = 0;
  // False: some of the runs lack it, so it may be missing.
  bool always = false;
  bool is_there() const { return centre == centre; }
  bool is_exact() const { return centre == -std::numeric_limits<double>::infinity(); }
};
Band band_of(std::span<const Measured> values, MetricUnit unit);

// The bands of all metrics, in the order of a lane's LaneSummary::values.
struct LaneBands {
  std::vector<std::vector<Band>> bands;
  std::vector<ExponentQuantiles> exponents;  // means, of the reference
  std::vector<bool> has_exponents;
  const Band* find(MetricId id, size_t subject) const;
  Band* find(MetricId id, size_t subject);
};

enum class Draw : uint8_t {
  kSame,   // the same weights, but for an ulp, and the same batches
  kOther,  // another seed
};
std::string_view to_string(Draw draw);  // "ulps", "seeds": what the ensemble's runs differ in

// "13 runs from weights moved by one ulp".
std::string runs_text(Draw draw, int64_t runs);

// A warning for an ensemble of few runs: "4 runs from weights moved by one ulp make wide limits: a
// small regression may pass". "": enough, or none at all.
std::string few_runs_text(Draw draw, int64_t runs);

struct Ensemble {
  int64_t runs = 0;
  std::vector<LaneBands> lanes = {};  // as in the baseline
  bool is_usable() const { return runs >= static_cast<int64_t>(kFewestRuns); }
};
// Requires: the same lanes and sites in all.
Ensemble make_ensemble(std::span<const RunSummary> runs);

// Widens the bands of errors of runs from other seeds. The lanes of such runs drift apart, each as
// a whole, and where few runs show one of two sizes at a site, the next may show the other. Of a
// lane's errors no spread is less than half of their median.
void pool_drift(Ensemble& ensemble);

// The factor of the spread: t(runs - 1) at 1 - alpha / (2 judged), times sqrt(1 + 1/runs).
double limit_factor(int64_t runs, double alpha, size_t judged);

}  // namespace lockstep
