// See search_state.h.
#include "analysis/search/search_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "analysis/ranges/range_samples.h"
#include "src/policy/find_policy.h"
#include "src/record/run/play.h"

namespace lockstep {
SearchState::SearchState(TrialRuns& runs, const SearchOptions& options)
    : options(options), runs(runs), budget_(options.budget) {
  advice.gpu = options.gpu;
}

void SearchState::read_trace() {
  const RunFile trace(runs.last_path());
  evidence_ = fmt::format("{} steps of {}", trace.steps(), trace.options().model);
  advice.steps = trace.steps();
  advice.network = read_network(trace);
  advice.fp32_cost =
      cost_of(advice.network, find_policy(kReferenceLane), advice.network.memory, *options.gpu);
  ZeroTally tally(trace.sites().sites.size());
  play_reference(trace, tally);
  for (const BaseFormat& base : base_formats()) {
    const std::string format(base.format);
    if (std::ranges::find(options.formats, format) == options.formats.end()) continue;
    advice.ranges.push_back(make_range_table(
        range_samples(trace, autocast_policy(format), tally.zeros()), find_format(format)));
  }
}

std::vector<Trial> SearchState::run(const std::vector<Candidate>& candidates) {
  std::vector<Trial> trials = runs.run(candidates);
  if (advice.ranges.empty()) read_trace();
  for (Trial& trial : trials) {
    trial.cost = cost_of(advice.network, policy_of(trial.candidate), trial.memory, *options.gpu);
    advice.tried.push_back(trial);
  }
  return trials;
}

std::vector<Trial> SearchState::try_all(const std::vector<Candidate>& candidates) {
  std::vector<Trial> trials;
  for (size_t at = 0; at < candidates.size();) {
    const size_t count = budget_.take(std::min(kLanesPerReplay, candidates.size() - at));
    if (count == 0) {
      advice.out_of_budget = true;
      break;
    }
    const auto begin = candidates.begin() + static_cast<int64_t>(at);
    const std::vector<Trial> part = run({begin, begin + static_cast<int64_t>(count)});
    trials.insert(trials.end(), part.begin(), part.end());
    at += count;
  }
  return trials;
}

Candidate SearchState::named(Candidate candidate) {
  const std::string name = fmt::format(
      "{}-{}", candidate.narrow.empty() ? candidate.format : candidate.narrow, ++number_);
  const RangeTable* ranges = advice.ranges_of(candidate.format);
  return make_candidate(name, std::move(candidate),
                        "Found by running candidates and fp32 side by side: " + evidence_ + ".",
                        ranges != nullptr ? interval_sentence(*ranges) : "");
}

void SearchState::add_sensitivity(SensitivityTable table) {
  SensitivityTable& whole = advice.sensitivity;
  const std::string format = table.layers.empty() ? "" : table.layers.front().format;
  const auto is_replaced = [&](const auto& row) { return row.format == format; };
  std::erase_if(whole.roles, is_replaced);
  std::erase_if(whole.layers, is_replaced);
  table.roles.insert(table.roles.begin(), whole.roles.begin(), whole.roles.end());
  table.layers.insert(table.layers.begin(), whole.layers.begin(), whole.layers.end());
  if (!table.is_measured) {
    table.is_measured = whole.is_measured;
    table.floor = whole.floor;
    table.of_layers = whole.of_layers;
    table.of_roles = whole.of_roles;
    table.measured_top_third = whole.measured_top_third;
  }
  whole = std::move(table);
}

std::optional<Trial> SearchState::without_culprits(
    const LayerSet& low, const std::function<Candidate(const LayerSet&)>& with) {
  const LayerSet culprits = find_culprits(low, [&](const std::vector<LayerSet>& sets) {
    std::vector<Candidate> candidates;
    for (const LayerSet& set : sets) candidates.push_back(named(with(set)));
    std::vector<bool> fails;
    for (const Trial& trial : try_all(candidates)) fails.push_back(!trial.passes());
    return fails;
  });
  if (culprits.empty()) return std::nullopt;
  LayerSet others;
  std::ranges::copy_if(low, std::back_inserter(others), [&](const std::string& layer) {
    return std::ranges::find(culprits, layer) == culprits.end();
  });
  const std::vector<Trial> trials = try_all({named(with(others))});
  if (trials.empty() || !trials.front().passes()) return std::nullopt;
  return trials.front();
}

void SearchState::let_go(Trial& passed, std::vector<KeptLayer> Candidate::*list,
                         const std::vector<std::string>& fixed, const Trial* without_all) {
  for (;;) {
    std::vector<KeptLayer> layers;  // that may go
    std::ranges::copy_if(
        passed.candidate.*list, std::back_inserter(layers),
        [&](const KeptLayer& kept) { return std::ranges::find(fixed, kept.layer) == fixed.end(); });
    if (layers.empty()) return;
    const auto without = [&](const std::set<std::string>& gone) {
      Candidate smaller = passed.candidate;
      std::erase_if(smaller.*list, [&](auto& kept) { return gone.contains(kept.layer); });
      return named(std::move(smaller));
    };
    if (layers.size() == 1 && without_all != nullptr) {
      advice.without.insert_or_assign(layers.front().layer, *without_all);
      return;
    }
    std::vector<Candidate> smaller;
    for (const KeptLayer& layer : layers) smaller.push_back(without({layer.layer}));
    const std::vector<Trial> trials = try_all(smaller);
    std::set<std::string> can_go;
    std::optional<Trial> first;
    for (size_t i = 0; i < trials.size(); ++i) {
      advice.without.erase(layers[i].layer);
      if (!trials[i].passes()) {
        advice.without.emplace(layers[i].layer, trials[i]);
        continue;
      }
      can_go.insert(layers[i].layer);
      if (!first) first = trials[i];
    }
    if (!first || advice.out_of_budget) {
      if (first) passed = *first;
      return;
    }
    if (can_go.size() > 1 && has_budget()) {
      const std::vector<Trial> together = try_all({without(can_go)});
      if (!together.empty() && together.front().passes()) first = together.front();
    }
    passed = *first;
  }
}

std::vector<Assignment> thinned(const std::vector<Assignment>& frontier, size_t most) {
  if (frontier.size() <= most) return frontier;
  std::vector<Assignment> out;
  for (size_t i = 0; i < most; ++i) {
    out.push_back(frontier[i * (frontier.size() - 1) / (most - 1)]);
  }
  return out;
}

}  // namespace lockstep
