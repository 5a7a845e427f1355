// The options and the result of a check. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

enum class ExactVerdict : uint8_t {
  kPass,
  kRegression,
  kIncomplete,  // what both have is equal, but the run lacks lanes or steps
  kNothingComparable,
};

struct ExactOptions {
  bool strict = false;  // floats must have equal bits, too
  // Units: relative. Default: two sums of non-negative terms formed in double in different orders,
  // each within gamma_n of the exact one: 2 gamma_n, n = 256 + 4 + 52
  // (emulation/kernels/reduction.h), u = 2^-53. Groups of four that are added in float first
  // (element_stats.h) have the same order everywhere.
  double rel_tol = default_rel_tol();
  static constexpr double default_rel_tol() {
    constexpr double kUnitRoundoff = 0x1p-53;
    constexpr double kTerms = 256 + 4 + 52;  // emulation/kernels/reduction.h, up to 2^52 blocks
    return 2 * kTerms * kUnitRoundoff / (1 - kTerms * kUnitRoundoff);
  }
};

struct Difference {
  int64_t step = -1;                // -1: does not belong to a step
  std::string lane, rule, subject;  // subject: "site LABEL", "parameter NAME", or "": neither
  std::string run, baseline;        // both values, printed
  double relative = 0;  // |run - baseline| / max(|run|, |baseline|); infinity: not comparable
};

// A site in one step of one lane.
struct SitePlace {
  int64_t step = 0;
  std::string lane;
  int32_t site = -1;
};

// The first element of a tensor with other bits.
struct FirstValue {
  std::vector<int64_t> index = {};
  int64_t pass = -1;  // micro-batch and worker; -1: the step has one pass
  double run = 0, baseline = 0;
  std::string format = {};  // of the site
  double ulps = -1;         // |run - baseline| in ulps of that format at the baseline's value; -1:
                            // one of them is not finite
  int64_t differing = 0, count = 0;  // elements of the tensor
};

// All differences of one rule in one lane.
struct DifferenceGroup {
  std::string lane, rule;
  uint64_t count = 0;  // values that differ
  uint64_t compared = 0;
  Difference first, worst;
};

// A finding of a lane that the baseline's lane does not have (analysis/findings).
struct NewFinding {
  std::string lane, sentence;
};

struct ExactResult {
  ExactVerdict verdict = ExactVerdict::kPass;
  std::vector<std::string> not_comparable;  // one line for each difference of the set-up
  std::vector<std::string> missing;         // lanes or steps that the run lacks
  std::vector<std::string> remarks;         // e.g. a different environment
  std::vector<DifferenceGroup> groups;      // with differences, most severe first
  std::vector<NewFinding> new_findings;     // only if values differ
  bool has_first = false;
  Difference first;  // smallest (step, lane, site, rule)
  // If the first difference is at a site: where, the lane's name in the baseline, and the element
  // or the reason why it is not known (first_value.h).
  std::optional<SitePlace> first_place;
  std::string first_baseline_lane;
  std::optional<FirstValue> first_value;
  std::string no_first_value;
  std::vector<std::string> lanes;  // compared
  int64_t steps = 0;               // compared
  uint64_t values = 0;             // compared
  uint64_t nonfinite_on_both = 0;  // equal in kind (NaN, +inf, -inf) only
};

}  // namespace lockstep
