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
    {"count", kCount, "elements of the tensor; 0 where the lane lacks the site",
     [](const T& t, const E&) { return t.count; }, nullptr},
    {"compared", kCount, "elements finite both in this lane and in the reference; 0: no comparison",
     [](const T&, const E& e) { return e.compared; }, nullptr},
    {"source_zero", kCount, "elements that were zero before the rounding",
     [](const T& t, const E&) { return t.source_zero; }, nullptr},
    {"to_zero", kCount, "underflow: nonzero elements that were rounded to zero",
     [](const T& t, const E&) { return t.to_zero; }, nullptr},
    {"to_subnormal", kCount,
     "nonzero elements below the format's smallest normal number after the rounding",
     [](const T& t, const E&) { return t.to_subnormal; }, nullptr},
    {"to_infinity", kCount,
     "overflow: finite elements that became infinite (NaN where the format "
     "has no infinity)",
     [](const T& t, const E&) { return t.to_infinity; }, nullptr},
    {"saturated", kCount, "elements beyond the largest finite number that were set to it",
     [](const T& t, const E&) { return t.saturated; }, nullptr},
    {"nan", kCount, "elements that were NaN before the rounding",
     [](const T& t, const E&) { return t.nan; }, nullptr},
    {"inexact", kCount, "elements that the rounding changed (NaN to NaN is not a change)",
     [](const T& t, const E&) { return t.inexact; }, nullptr},
    {"abs_max", kMoment, "largest |x| before the rounding, infinity included, NaN not; 0 if none",
     nullptr, [](const T& t, const E&) { return t.abs_max; }},
    {"abs_min_nonzero", kMoment,
     "smallest nonzero finite |x| before the rounding; infinity if none", nullptr,
     [](const T& t, const E&) { return t.abs_min_nonzero; }, MomentOver::kNonzero},
    {"sum_sq", kMoment, "sum of x^2 over finite x, before the rounding", nullptr,
     [](const T& t, const E&) { return t.sum_sq; }},
    {"round_err_sq", kMoment,
     "local rounding error: sum of (after - before)^2 over elements finite "
     "before and after",
     nullptr, [](const T& t, const E&) { return t.round_err_sq; }},
    {"err_sq", kMoment,
     "error against the reference: sum of e^2, e = lane / scale - reference, over "
     "the compared elements",
     nullptr, [](const T&, const E& e) { return e.err_sq; }, MomentOver::kCompared},
    {"err_max_ulps", kMoment,
     "largest |e * scale| in ulps of the lane's format at reference * scale", nullptr,
     [](const T&, const E& e) { return e.err_max_ulps; }, MomentOver::kCompared},
    {"dot_ref", kMoment, "sum of (lane / scale) * reference over the compared elements", nullptr,
     [](const T&, const E& e) { return e.dot_ref; }, MomentOver::kCompared, /*signed_terms=*/true},
    {"ref_sq", kMoment, "sum of reference^2 over the compared elements", nullptr,
     [](const T&, const E& e) { return e.ref_sq; }, MomentOver::kCompared},
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
