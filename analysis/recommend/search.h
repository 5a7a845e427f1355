// Which policy trains like FP32 and keeps the fewest layers high?
// Runs plain autocast first. If that trains as FP32 does, nothing needs doing. Otherwise candidates
// come from the ranges of the trace, from the findings of what failed, and from the layers whose
// roundings move the loss most; what passes is then made smaller, until no single layer can be let
// go. Every candidate is judged by running it (TrialRuns).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/recommend/trial_runs.h"

namespace lockstep {

struct Advice {
  enum class Answer : uint8_t {
    kPlain,       // autocast as it is
    kExceptions,  // autocast with layers in FP32, or another loss scale
    kFp32,        // no candidate within the budget trained as FP32 did
    kTooShort,    // FP32 itself has not learned in these steps
    kFp32Broke,   // FP32's own loss is not finite at the end
  };
  Answer answer = Answer::kFp32;
  std::optional<Trial> chosen;      // of kPlain, kExceptions
  std::vector<Trial> tried;         // in this order
  std::vector<RangeTable> ranges;   // of each format of the search, from the trace
  SiteTable sites;                  // of the trace
  std::vector<std::string> layers;  // of the model, those with a site
  // Layers in FP32 without which the chosen candidate did not pass, and what happened then.
  std::map<std::string, Trial> without;
  int64_t steps = 0;
  bool out_of_budget = false;

  const RangeTable* ranges_of(const std::string& format) const;
};

// `formats`: "fp16", "bf16", the preferred one first: the next is tried where nothing in it passes.
// `budget`: candidates to run at most, beyond plain autocast. Throws: InputError, WriteError,
// SearchStopped.
Advice search(TrialRuns& runs, const std::vector<std::string>& formats, int64_t budget);

}  // namespace lockstep
