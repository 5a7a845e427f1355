// THE table of statistics: a new number is a field of the record and a row here.
#include "emulation/stats/tensor_stats.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr auto kCount = StatisticKind::kCount;
constexpr auto kMoment = StatisticKind::kMoment;
using T = TensorStats;
using E = ErrorStats;

constexpr Statistic kStatistics[] = {
    {.name = "count",
     .kind = kCount,
     .help = "elements of the tensor; 0 where the lane lacks the site",
     .count = [](const T& t, const E&) { return t.count; }},
    {.name = "compared",
     .kind = kCount,
     .help = "elements finite both in this lane and in the reference; 0: no comparison",
     .count = [](const T&, const E& e) { return e.compared; }},
    {.name = "source_zero",
     .kind = kCount,
     .help = "elements that were zero before the rounding",
     .count = [](const T& t, const E&) { return t.source_zero; }},
    {.name = "to_zero",
     .kind = kCount,
     .help = "underflow: nonzero elements that were rounded to zero",
     .count = [](const T& t, const E&) { return t.to_zero; }},
    {.name = "to_subnormal",
     .kind = kCount,
     .help = "nonzero elements below the format's smallest normal number after the rounding",
     .count = [](const T& t, const E&) { return t.to_subnormal; }},
    {.name = "to_infinity",
     .kind = kCount,
     .help = "overflow: finite elements that became infinite (NaN where the format "
             "has no infinity)",
     .count = [](const T& t, const E&) { return t.to_infinity; }},
    {.name = "saturated",
     .kind = kCount,
     .help = "elements beyond the largest finite number that were set to it",
     .count = [](const T& t, const E&) { return t.saturated; }},
    {.name = "nan",
     .kind = kCount,
     .help = "elements that were NaN before the rounding",
     .count = [](const T& t, const E&) { return t.nan; }},
    {.name = "inexact",
     .kind = kCount,
     .help = "elements that the rounding changed (NaN to NaN is not a change)",
     .count = [](const T& t, const E&) { return t.inexact; }},
    {.name = "abs_max",
     .kind = kMoment,
     .help = "largest |x| before the rounding, infinity included, NaN not; 0 if none",
     .moment = [](const T& t, const E&) { return t.abs_max; }},
    {.name = "abs_min_nonzero",
     .kind = kMoment,
     .help = "smallest nonzero finite |x| before the rounding; infinity if none",
     .moment = [](const T& t, const E&) { return t.abs_min_nonzero; },
     .over = MomentOver::kNonzero},
    {.name = "sum_sq",
     .kind = kMoment,
     .help = "sum of x^2 over finite x, before the rounding",
     .moment = [](const T& t, const E&) { return t.sum_sq; }},
    {.name = "round_err_sq",
     .kind = kMoment,
     .help = "local rounding error: sum of (after - before)^2 over elements finite "
             "before and after",
     .moment = [](const T& t, const E&) { return t.round_err_sq; }},
    {.name = "err_sq",
     .kind = kMoment,
     .help = "error against the reference: sum of e^2, e = lane / scale - reference, over "
             "the compared elements",
     .moment = [](const T&, const E& e) { return e.err_sq; },
     .over = MomentOver::kCompared},
    {.name = "err_max_ulps",
     .kind = kMoment,
     .help = "largest |e * scale| in ulps of the lane's format at reference * scale",
     .moment = [](const T&, const E& e) { return e.err_max_ulps; },
     .over = MomentOver::kCompared},
    {.name = "dot_ref",
     .kind = kMoment,
     .help = "sum of (lane / scale) * reference over the compared elements",
     .moment = [](const T&, const E& e) { return e.dot_ref; },
     .over = MomentOver::kCompared,
     .signed_terms = true},
    {.name = "ref_sq",
     .kind = kMoment,
     .help = "sum of reference^2 over the compared elements",
     .moment = [](const T&, const E& e) { return e.ref_sq; },
     .over = MomentOver::kCompared},
};

}  // namespace

TensorStats TensorStats::counts() const {
  TensorStats only;
  only.count = count;
  only.source_zero = source_zero;
  only.to_zero = to_zero;
  only.to_subnormal = to_subnormal;
  only.to_infinity = to_infinity;
  only.saturated = saturated;
  only.nan = nan;
  only.inexact = inexact;
  return only;
}

void TensorStats::merge(const TensorStats& other) {
  count += other.count;
  source_zero += other.source_zero;
  to_zero += other.to_zero;
  to_subnormal += other.to_subnormal;
  to_infinity += other.to_infinity;
  saturated += other.saturated;
  nan += other.nan;
  inexact += other.inexact;
  abs_max = std::max(abs_max, other.abs_max);
  abs_min_nonzero = std::min(abs_min_nonzero, other.abs_min_nonzero);
  sum_sq += other.sum_sq;
  round_err_sq += other.round_err_sq;
  bits_hash += other.bits_hash;
  for (int bin = 0; bin < kHistogramBins; ++bin) {
    exponent_histogram[bin] += other.exponent_histogram[bin];
  }
}

void ErrorStats::merge(const ErrorStats& other) {
  compared += other.compared;
  err_sq += other.err_sq;
  err_max_ulps = std::max(err_max_ulps, other.err_max_ulps);
  dot_ref += other.dot_ref;
  ref_sq += other.ref_sq;
}

std::span<const Statistic> statistics() {
  return kStatistics;
}

}  // namespace lockstep
