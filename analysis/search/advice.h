// What a search is asked, and what it answers: plain data.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/cost/network.h"
#include "analysis/search/search_budget.h"
#include "analysis/search/sensitivity.h"
#include "analysis/search/trial_runs.h"

namespace lockstep {

struct SearchOptions {
  // The preferred one first: the next base format is tried where nothing in the one before passes.
  // Narrow formats are tried on top of what passes.
  std::vector<std::string> formats;
  std::vector<std::string> also;  // subjects of memory choices
  SearchBudget budget;
  const Gpu* gpu = nullptr;
};

// The outcome of a narrow format.
struct NarrowOutcome {
  std::string format;
  std::string why_not = {};          // not tried, or tried and not used: the reason
  std::optional<Trial> passed = {};  // trains as FP32 does
  bool is_faster = false;            // by the estimate, than its base
  size_t linear = 0;                 // layers in the format
};

// A point of the frontier that a search went along.
struct FrontierPoint {
  bool keeps_fp32 = false;  // counts the layers kept in FP32
  std::string format;       // that layers may have, or "fp32" of layers kept in it
  size_t layers = 0;        // in the format
  double cost = 0;          // relative to the frontier's largest
  double score = 0;
  std::string lane = {};  // "": not run
  bool passes = false;
};

struct MemoryOutcome {
  std::string choice;  // a row of memory_choices()
  Trial trial;
  // What the update loses, though the loss does not show it in these steps; null: nothing, or not
  // enough for a finding.
  std::optional<Finding> loses;
  bool passes() const { return trial.passes() && !loses; }
};

struct Advice {
  enum class Answer : uint8_t {
    kPlain,       // autocast as it is
    kExceptions,  // autocast with layers in FP32, another loss scale, narrower layers
    kFp32,        // no candidate within the budget trained as FP32 did
    kTooShort,    // FP32 itself has not learned in these steps, and none agreed with it in them
    kFp32Broke,   // FP32's own loss is not finite at the end
  };
  Answer answer = Answer::kFp32;
  std::optional<Trial> chosen;     // of kPlain, kExceptions
  std::optional<Trial> plain;      // autocast in the chosen format
  std::vector<Trial> tried;        // in this order
  std::vector<RangeTable> ranges;  // of each base format of the search, from the trace
  Network network;
  SensitivityTable sensitivity;
  std::vector<FrontierPoint> frontier;
  std::vector<NarrowOutcome> narrow;
  std::vector<MemoryOutcome> memory;
  MemoryFacts memory_without;  // of the policy that the choices were added to
  bool memory_alone = false;   // together the choices that passed did not
  // Kept layers without which the chosen candidate did not pass, and what happened then.
  std::map<std::string, Trial> without;
  const Gpu* gpu = nullptr;
  StepCost fp32_cost;
  int64_t steps = 0;
  bool out_of_budget = false;
  // FP32 itself has not learned in these steps, so candidates pass by Trial::passes() alone.
  bool is_too_short = false;

  const RangeTable* ranges_of(const std::string& format) const;
};

}  // namespace lockstep
