// THE table of statistics: a new number is a field of the record and a row here.
#include "emulation/stats/tensor_stats.h"

#include <algorithm>

namespace lockstep {
namespace {

using T = TensorStats;
using E = ErrorStats;

constexpr Statistic kStatistics[] = {
    {.name = "count",
     .member = &T::count,
     .help = "elements of the tensor; 0 where the lane lacks the site"},
    {.name = "compared",
     .member = &E::compared,
     .help = "elements finite both in this lane and in the reference; 0: no comparison"},
    {.name = "source_zero",
     .member = &T::source_zero,
     .help = "elements that were zero before the rounding"},
    {.name = "to_zero",
     .member = &T::to_zero,
     .help = "underflow: nonzero elements that were rounded to zero"},
    {.name = "to_subnormal",
     .member = &T::to_subnormal,
     .help = "nonzero elements below the format's smallest normal number after the rounding"},
    {.name = "to_infinity",
     .member = &T::to_infinity,
     .help = "overflow: finite elements that became infinite (NaN where the format "
             "has no infinity)"},
    {.name = "saturated",
     .member = &T::saturated,
     .help = "elements beyond the largest finite number that were set to it"},
    {.name = "nan", .member = &T::nan, .help = "elements that were NaN before the rounding"},
    {.name = "inexact",
     .member = &T::inexact,
     .help = "elements that the rounding changed (NaN to NaN is not a change)"},
    {.name = "abs_max",
     .member = &T::abs_max,
     .help = "largest |x| before the rounding, infinity included, NaN not; 0 if none"},
    {.name = "abs_min_nonzero",
     .member = &T::abs_min_nonzero,
     .help = "smallest nonzero finite |x| before the rounding; infinity if none",
     .over = MomentOver::kNonzero},
    {.name = "sum_sq",
     .member = &T::sum_sq,
     .help = "sum of x^2 over finite x, before the rounding"},
    {.name = "round_err_sq",
     .member = &T::round_err_sq,
     .help = "local rounding error: sum of (after - before)^2 over elements finite "
             "before and after"},
    {.name = "err_sq",
     .member = &E::err_sq,
     .help = "error against the reference: sum of e^2, e = lane / scale - reference, over "
             "the compared elements",
     .over = MomentOver::kCompared},
    {.name = "err_max_ulps",
     .member = &E::err_max_ulps,
     .help = "largest |e * scale| in ulps of the lane's format at reference * scale",
     .over = MomentOver::kCompared},
    {.name = "dot_ref",
     .member = &E::dot_ref,
     .help = "sum of (lane / scale) * reference over the compared elements",
     .over = MomentOver::kCompared,
     .signed_terms = true},
    {.name = "ref_sq",
     .member = &E::ref_sq,
     .help = "sum of reference^2 over the compared elements",
     .over = MomentOver::kCompared},
};

// Requires: a member of this type.
template <typename Value>
Value value_of(const StatisticMember& member, const TensorStats& stats, const ErrorStats& error) {
  if (const auto* of_stats = std::get_if<Value T::*>(&member)) return stats.**of_stats;
  return error.*std::get<Value E::*>(member);
}

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

StatisticKind Statistic::kind() const {
  const bool is_count = std::holds_alternative<uint64_t T::*>(member) ||
                        std::holds_alternative<uint64_t E::*>(member);
  return is_count ? StatisticKind::kCount : StatisticKind::kMoment;
}
uint64_t Statistic::count(const TensorStats& stats, const ErrorStats& error) const {
  return value_of<uint64_t>(member, stats, error);
}
double Statistic::moment(const TensorStats& stats, const ErrorStats& error) const {
  return value_of<double>(member, stats, error);
}

std::span<const Statistic> statistics() {
  return kStatistics;
}

}  // namespace lockstep
