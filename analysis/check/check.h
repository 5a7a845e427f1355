// Did a change alter the numerics? Compares a run with one accepted as good.
// What is compared is the table of rules in check.cc: bit hashes, counts and scaler states exactly,
// sums and losses within a tolerance that covers another order of summation and nothing more.
//
// Fails closed. A value missing on one side, or non-finite on one side, is a difference whatever
// the tolerance is; runs that are not about the same thing are never compared and never pass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/record/run/run_file.h"

namespace lockstep {

enum class CheckVerdict : uint8_t { kPass = 0, kRegression = 1, kNothingComparable = 3 };

// How two numbers of one rule are compared.
enum class Comparison : uint8_t { kExact, kTolerance };

struct CheckRule {
  std::string name;  // the run file's dataset, e.g. "counts/to_zero"
  Comparison comparison;
  std::string help;
};
std::vector<CheckRule> check_rules();

struct CheckOptions {
  bool strict = false;  // floats, too, must have equal bits
  // Units: relative. Default: two sums of non-negative terms formed in different orders, each
  // within gamma_n of the exact one: 2 gamma_n, n = 256 + 4 + 52 (emulation/kernels/reduction.h), u
  // = 2^-53.
  double rel_tol = default_rel_tol();
  static double default_rel_tol();
};

struct Difference {
  int64_t step = -1;                // -1: not of a step
  std::string lane, rule, subject;  // subject: "site LABEL", "parameter NAME", or "": of neither
  std::string run, baseline;        // both values, printed
  double relative = 0;  // |run - baseline| / max(|run|, |baseline|); infinity: not comparable
};

// All differences of one rule in one lane.
struct DifferenceGroup {
  std::string lane, rule;
  uint64_t count = 0;  // values that differ
  uint64_t compared = 0;
  Difference first, worst;
};

struct CheckResult {
  CheckVerdict verdict = CheckVerdict::kPass;
  std::vector<std::string> not_comparable;  // one line each: what differs in the set-up
  std::vector<std::string> missing;         // lanes or steps the run lacks
  std::vector<std::string> remarks;         // e.g. a different environment
  std::vector<DifferenceGroup> groups;      // with differences, most severe first
  bool has_first = false;
  Difference first;                // smallest (step, lane, site, rule)
  std::vector<std::string> lanes;  // compared
  int64_t steps = 0;               // compared
  uint64_t values = 0;             // compared
  uint64_t nonfinite_on_both = 0;  // equal in kind (NaN, +inf, -inf) only
};

CheckResult check_runs(const RunFile& run, const RunFile& baseline, const CheckOptions& options);

// How far apart two floats are: 0 when equal (NaN equals NaN, an infinity itself), infinity when
// one side is not finite or the signs of infinities differ, else |a - b| / magnitude. `magnitude`:
// the size a rounding error is relative to, at least max(|a|, |b|).
double relative_difference(double run, double baseline, double magnitude);

}  // namespace lockstep
