// What `recommend` answers for a folder of parts: plain data. All effects are changes of the whole
// model's loss (part_effects.h), all times estimates of a step of the captured parts alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/candidates/candidate.h"
#include "analysis/cost/gpu_cost.h"
#include "analysis/parts/part_effects.h"

namespace lockstep {

// An estimate of at least this share of the base's time is no gain.
inline constexpr double kNoGain = 0.98;

// How a part runs in a candidate.
enum class PartChoice : uint8_t {
  kBase,    // in the base format
  kExcept,  // narrow but for the layer whose roundings move the loss most
  kNarrow,
};

// Of several parts. Effects add up; their standard errors add up as squares, twice, because in the
// whole network a part rounds other inputs than it does alone, which draws the first order anew
// (docs/study/parts.md).
struct PartTotal {
  int parts = 0;
  double effect = 0, variance = 0;
  bool is_finite = true;
  bool has_error = true;  // false: a part has one batch

  void add(const PartEffect& part);
  double error() const;  // two standard errors
  // |effect| + error <= tolerance.
  bool is_within(double tolerance) const;
};

struct PartPlan {
  std::string part;  // the path of its module
  PartChoice choice = PartChoice::kNarrow;
  std::string kept;   // kExcept: the layer
  PartEffect effect;  // as run in the candidate
  double seconds = 0;
  double work = 0;          // multiply-adds times bits of a factor
  bool is_between = false;  // not captured: between two that were; effect, seconds interpolated
};

// A recipe for linear layers on top of the base, with parts kept from it.
struct PartCandidate {
  std::string format;        // a row of narrow_formats(); "": the base alone
  std::string why_not = {};  // not used: the reason
  std::optional<Candidate> candidate = {};
  std::vector<PartPlan> parts = {};
  PartTotal all_narrow = {};     // every part in the format
  PartTotal total = {};          // of `parts`, as run
  PartTotal with_between = {};   // parts that were not captured included
  bool refuses_between = false;  // with them the sum is not within the tolerance
  double seconds = 0, work = 0;
  size_t count_of(PartChoice choice) const;
};

struct PartAdvice {
  enum class Answer : uint8_t {
    kNarrow,   // a narrow format, in some or all parts
    kBase,     // the base is within the tolerance, nothing narrower is
    kUnclear,  // the base's effect is within the tolerance, but not with its error: too few batches
    kNone,     // the base itself is not within the tolerance
  };
  Answer answer = Answer::kNone;
  double tolerance = 0;
  const Gpu* gpu = nullptr;
  std::string base_format;
  int64_t batches = 0;  // the most of a part
  PartCandidate base;
  std::vector<PartCandidate> tried;      // in the order of --formats
  size_t chosen = 0;                     // kNarrow: of tried
  std::vector<std::string> not_counted;  // parts inside others
  int64_t replays = 0, read_again = 0;
  std::string run;  // the last run file

  // By the estimate, which says little of captures that keep few tokens: weights dominate there.
  bool is_faster() const { return used().seconds < kNoGain * base.seconds; }
  const PartCandidate& used() const { return answer == Answer::kNarrow ? tried[chosen] : base; }
};

}  // namespace lockstep
