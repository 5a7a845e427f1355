// See memory_search.h.
#include "analysis/search/memory_search.h"

#include <algorithm>

namespace lockstep {
namespace {

bool applies(const MemoryChoice& choice, const SearchOptions& options, const Candidate& to) {
  const bool is_wanted = std::ranges::find(options.also, choice.subject) != options.also.end();
  const bool suits = choice.only.empty() ? has_16_bits(to.format)
                                         : choice.only == to.format || choice.only == to.narrow;
  return is_wanted && suits;
}

// Updates that are lost do not show in the loss of a short run.
std::optional<Finding> lost_in_update(const Trial& trial) {
  const auto found = std::ranges::find_if(trial.findings, [](const Finding& finding) {
    return finding.kind == FindingKind::kLostUpdates ||
           finding.kind == FindingKind::kLostConstant ||
           finding.kind == FindingKind::kStateUnderflow ||
           finding.kind == FindingKind::kStateOverflow || finding.kind == FindingKind::kSwamping;
  });
  if (found == trial.findings.end()) return std::nullopt;
  return *found;
}

}  // namespace

void search_memory(SearchState& state) {
  Advice& advice = state.advice;
  Trial& chosen = *advice.chosen;
  std::vector<Candidate> candidates;
  for (const MemoryChoice& choice : memory_choices()) {
    if (!applies(choice, state.options, chosen.candidate)) continue;
    Candidate candidate = chosen.candidate;
    candidate.memory = {std::string(choice.name)};
    candidates.push_back(state.named(std::move(candidate)));
  }
  if (candidates.empty()) return;
  advice.memory_without = chosen.memory;
  for (const Trial& trial : state.try_all(candidates)) {
    advice.memory.push_back({trial.candidate.memory.front(), trial, lost_in_update(trial)});
  }
  Candidate together = chosen.candidate;
  const Trial* last = nullptr;
  for (const std::string& subject : state.options.also) {
    for (const MemoryOutcome& outcome : advice.memory) {
      const bool is_of_it = find_memory_choice(outcome.choice).subject == subject;
      if (!is_of_it || !outcome.passes()) continue;
      together.memory.push_back(outcome.choice);
      last = &outcome.trial;
      break;
    }
  }
  if (together.memory.empty()) return;
  Trial passed = *last;
  if (together.memory.size() > 1) {
    const std::vector<Trial> trials = state.try_all({state.named(together)});
    const bool passes =
        !trials.empty() && trials.front().passes() && !lost_in_update(trials.front());
    if (passes) passed = trials.front();
    advice.memory_alone = !passes;
  }
  chosen = passed;
  advice.answer = Advice::Answer::kExceptions;
}

}  // namespace lockstep
