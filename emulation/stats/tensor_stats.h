// What a rounding did to an array.
// Two plain records: TensorStats (one array, before and after its rounding) and ErrorStats (a
// lane's array against the reference's). `statistics()` is the table that names, explains and reads
// every number in them. The run file, the reports and `lockstep list statistics` use its rows.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <variant>

namespace lockstep {

inline constexpr int kHistogramBins = 256;

// Counts and sums over one array. "before" is the value before the rounding, "after" the value
// after it. Counts are over elements. Sums have the fixed shape of emulation/kernels/reduction.h:
// four elements of a float array are added in float, then to the double (GroupRule in
// element_stats.h). So they have the same bits for every thread count and vector width. Error: of
// sum_sq at most 2.4e-7 of the sum for float arrays, of round_err_sq 3.6e-7.
struct TensorStats {
  uint64_t count = 0;
  uint64_t source_zero = 0;   // before == 0
  uint64_t to_zero = 0;       // before != 0, after == 0 (underflow)
  uint64_t to_subnormal = 0;  // after is nonzero and below the format's min_normal
  uint64_t to_infinity = 0;   // before finite, after infinite (or NaN by OverflowRule::kNan)
  uint64_t saturated = 0;     // before beyond max_finite, after == +-max_finite
  uint64_t nan = 0;           // before is NaN
  uint64_t inexact = 0;       // after != before (NaN to NaN is not inexact)
  double abs_max = 0;         // max |before|, NaN excluded, infinity included
  double abs_min_nonzero = std::numeric_limits<double>::infinity();  // over finite nonzero before
  double sum_sq = 0;        // sum of before^2 over finite elements
  double round_err_sq = 0;  // sum of (after - before)^2 over elements finite before and after
  uint64_t bits_hash = 0;   // of the bits after rounding: see hash_element in quantize.h
  std::array<uint64_t, kHistogramBins> exponent_histogram{};  // FP32 exponent field of before

  // `infinities_meant`: the values have infinities on purpose (masked scores).
  bool nonfinite_seen(bool infinities_meant = false) const {
    return nan > 0 || (!infinities_meant && (to_infinity > 0 || abs_max > kMaxDouble));
  }
  void merge(const TensorStats& other);  // adds counts, sums, histograms; combines the extremes
  TensorStats counts() const;            // these alone: no extremes, sums, hash or histogram

  static constexpr double kMaxDouble = std::numeric_limits<double>::max();
};

// A lane's array against the reference's: error e = lane / scale - reference, over the elements
// where both are finite. Pairs of floats are added by fours in float, then in double (CompareRule
// in emulation/kernels/compare_stats.h). Error: of each sum at most 3.6e-7 of the sum of its terms'
// magnitudes, apart from underflow.
struct ErrorStats {
  uint64_t compared = 0;    // elements finite on both sides
  double err_sq = 0;        // sum of e^2
  double err_max_ulps = 0;  // max |e * scale| / ulp(reference * scale, lane's format)
  double dot_ref = 0;       // sum of (lane / scale) * reference
  double ref_sq = 0;        // sum of reference^2 over the compared elements

  void merge(const ErrorStats& other);
};

enum class StatisticKind : uint8_t { kCount, kMoment };

// The elements that a moment covers. A site without any of them has no such moment.
enum class MomentOver : uint8_t { kAll, kNonzero, kCompared };

// The member that a statistic is: by it the row is read from the two records and written to them.
using StatisticMember = std::variant<uint64_t TensorStats::*, uint64_t ErrorStats::*,
                                     double TensorStats::*, double ErrorStats::*>;

// One row of the table of statistics.
struct Statistic {
  std::string_view name;  // the run file's dataset name
  StatisticMember member;
  std::string_view help;  // meaning, unit, value when nothing was measured
  MomentOver over = MomentOver::kAll;
  // A sum of products of the lane with the reference, of both signs. Another order of summation
  // changes it by a share of the product of both norms, which may far exceed that share of the sum.
  bool signed_terms = false;

  StatisticKind kind() const;  // counts/ or moments/
  // Requires: of this kind.
  uint64_t count(const TensorStats& stats, const ErrorStats& error) const;
  double moment(const TensorStats& stats, const ErrorStats& error) const;
};
std::span<const Statistic> statistics();

}  // namespace lockstep
