// What the parts of a search share: its runs, its budget, what is known so far.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "analysis/search/advice.h"
#include "analysis/search/culprits.h"

namespace lockstep {

class SearchState {
 public:
  SearchState(TrialRuns& runs, const SearchOptions& options);

  Advice advice;
  const SearchOptions options;
  TrialRuns& runs;

  // The first replay: its reference lane is the trace.
  void read_trace();
  // Runs them without the budget; notes and prices them.
  std::vector<Trial> run(const std::vector<Candidate>& candidates);
  // As many as the budget allows, in their order; sets advice.out_of_budget.
  std::vector<Trial> try_all(const std::vector<Candidate>& candidates);
  bool has_budget() const { return budget_.any(); }
  std::function<bool()> budget_check() {
    return [this] {
      if (!has_budget()) advice.out_of_budget = true;
      return has_budget();
    };
  }
  // Named and written as a policy.
  Candidate named(Candidate candidate);

  // Adds rows to advice.sensitivity, in place of those of the same format; correlation and floor
  // are those of the last table that was measured.
  void add_sensitivity(SensitivityTable table);

  // The candidate in which all of `low` but the culprits (culprits.h) are low, if it passes and
  // `low` as a whole does not. `with`: the candidate in which only these of `low` are.
  std::optional<Trial> without_culprits(const LayerSet& low,
                                        const std::function<Candidate(const LayerSet&)>& with);

  // Takes layers out of one of `passed`'s lists: each alone, those that can go then together, or
  // else the first of them; until none can. `fixed`: not tried. `without_all`: what happened
  // without any, if that has been run.
  void let_go(Trial& passed, std::vector<KeptLayer> Candidate::*list,
              const std::vector<std::string>& fixed, const Trial* without_all);

 private:
  RemainingBudget budget_;
  int number_ = 0;
  std::string evidence_;
};

// A candidate that passes with so many exceptions is compared with one without culprits: to let go
// of fewer takes fewer runs than to find them.
inline constexpr size_t kManyExceptions = kLanesPerReplay;

// Points spread over the frontier, the first and the last among them.
std::vector<Assignment> thinned(const std::vector<Assignment>& frontier, size_t most);

}  // namespace lockstep
