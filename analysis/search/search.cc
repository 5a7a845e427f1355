// The base format: plain autocast, or layers in FP32. See search.h.
#include "analysis/search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/findings/finding_kinds.h"
#include "analysis/search/measured_sensitivity.h"
#include "analysis/search/memory_search.h"
#include "analysis/search/narrow_search.h"
#include "analysis/search/search_state.h"
#include "src/policy/find_policy.h"

namespace lockstep {
namespace {

constexpr size_t kFindingsToFollow = 3;
constexpr size_t kPointsAtOnce = 4;  // of the frontier, in one replay

// A point of the frontier, and the layers in FP32 there.
struct PointSet {
  size_t point = 0;
  std::vector<KeptLayer> layers;
};

class BaseSearch {
 public:
  explicit BaseSearch(SearchState& state) : state_(state), advice_(state.advice) {}

  // True if something passes: advice.chosen. False also if there is no answer at all.
  bool run(const std::string& format) {
    const Trial plain = state_.run({plain_autocast(format)}).front();
    if (!std::isfinite(plain.reference_loss)) {
      advice_.answer = Advice::Answer::kFp32Broke;
      return false;
    }
    advice_.plain = plain;
    advice_.is_too_short = advice_.is_too_short || plain.is_too_short();
    plain_path_ = state_.runs.last_path();
    state_.add_sensitivity(scored(format));
    if (plain.passes()) {
      advice_.answer = Advice::Answer::kPlain;
      advice_.chosen = plain;
      return true;
    }
    std::optional<Trial> passed = with_exceptions(plain);
    if (!passed) return false;
    const bool same_scale = passed->candidate.scale == plain.candidate.scale;
    state_.let_go(*passed, &Candidate::fp32, {}, same_scale ? &plain : nullptr);
    advice_.answer = Advice::Answer::kExceptions;
    advice_.chosen = passed;
    return true;
  }

 private:
  Candidate candidate(std::vector<KeptLayer> fp32, const ScaleChoice& scale) {
    return state_.named(
        {.format = advice_.plain->candidate.format, .fp32 = std::move(fp32), .scale = scale});
  }

  // Layers that the findings of a failed trial name, with their sentences, and the one whose
  // roundings move the loss most.
  std::vector<KeptLayer> culprits(const Trial& trial) const {
    const Network& network = advice_.network;
    std::vector<KeptLayer> found;
    const auto add = [&](const std::string& layer, const std::string& reason) {
      const bool is_layer = std::ranges::count(network.layers, layer) > 0;
      if (is_layer) found = joined(std::move(found), {{layer, reason}});
    };
    for (size_t i = 0; i < std::min(kFindingsToFollow, trial.findings.size()); ++i) {
      const Finding& finding = trial.findings[i];
      if (finding.site < 0) continue;
      const FindingContext context{finding, network.sites, trial.candidate.scale.scales,
                                   trial.steps};
      const std::string why = row_of(finding.kind).sentence(context);
      add(context.site().layer, why);
      if (finding.cause >= 0) {
        add(network.sites.sites[static_cast<size_t>(finding.cause)].layer, why);
      }
    }
    for (const auto& [layer, share] : trial.moved_by) {
      if (found.size() > kFindingsToFollow) break;
      add(layer, moves_most(share));
    }
    return found;
  }

  static std::string moves_most(double share) {
    return fmt::format("its roundings move the loss most ({:.0f}% of all)", 100 * share);
  }

  // Sets of layers in FP32 that hold `pinned` and cost little for what they spare: points of the
  // knapsack's frontier, the smallest sets first.
  std::vector<PointSet> frontier_sets(const Trial& plain, const std::vector<KeptLayer>& pinned) {
    const Network& network = advice_.network;
    const std::string& format = plain.candidate.format;
    const StepCost& high = advice_.fp32_cost;
    AssignmentProblem problem;
    problem.edges = cast_edges(network, network.layers, *state_.options.gpu);
    const auto at = [](const std::map<std::string, double>& costs, const std::string& layer) {
      const auto found = costs.find(layer);
      return found == costs.end() ? 0 : found->second;
    };
    for (const std::string& layer : network.layers) {
      const auto row = std::ranges::find_if(advice_.sensitivity.layers, [&](auto& one) {
        return one.layer == layer && one.format == format;
      });
      // Casts are priced as edges, so a layer in 16 bits costs no more than in FP32.
      const double in_fp32 = at(high.by_layer, layer);
      problem.layers.push_back({{in_fp32, 0, /*side=*/1}});
      if (has_layer(pinned, layer)) continue;
      problem.layers.back().push_back(
          {std::min(in_fp32, at(plain.cost.by_layer, layer)), row->score, /*side=*/0});
    }
    std::vector<PointSet> sets;
    const std::vector<Assignment> frontier = assignment_frontier(problem);
    for (const Assignment& point : thinned(frontier, 2 * kPointsAtOnce)) {
      std::vector<KeptLayer> set = pinned;
      for (size_t i = 0; i < network.layers.size(); ++i) {
        const bool is_high = problem.layers[i][point.choice[i]].side == 1;
        if (is_high) set = joined(std::move(set), {{network.layers[i], spared(network.layers[i])}});
      }
      sets.push_back({advice_.frontier.size(), std::move(set)});
      advice_.frontier.push_back({.keeps_fp32 = true,
                                  .format = "fp32",
                                  .layers = sets.back().layers.size(),
                                  .cost = point.cost / frontier.front().cost,
                                  .score = point.score});
    }
    std::ranges::reverse(sets);
    std::erase_if(sets, [&](const PointSet& set) { return has_run(format, set.layers); });
    return sets;
  }

  bool has_run(const std::string& format, const std::vector<KeptLayer>& set) const {
    return std::ranges::any_of(advice_.tried, [&](const Trial& trial) {
      const std::vector<KeptLayer>& fp32 = trial.candidate.fp32;
      return trial.candidate.format == format && fp32.size() == set.size() &&
             std::ranges::all_of(set, [&](auto& kept) { return has_layer(fp32, kept.layer); });
    });
  }

  std::string spared(const std::string& layer) const {
    for (const auto& [moved, share] : advice_.plain->moved_by) {
      if (moved == layer) {
        return fmt::format("its roundings move the loss ({:.0f}% of all)", 100 * share);
      }
    }
    return "no smaller set of layers was found to suffice";
  }

  // The first candidate that passes.
  std::optional<Trial> with_exceptions(const Trial& plain) {
    const std::string& format = plain.candidate.format;
    const RangeTable& ranges = *advice_.ranges_of(format);
    const ScaleChoice scale = choose_scaler(ranges, autocast_policy(format));
    const std::vector<KeptLayer> named = culprits(plain);
    std::vector<KeptLayer> by_range = layers_out_of_range(ranges);
    for (KeptLayer& layer : by_range) {  // what was seen says more than the range
      const auto seen = std::ranges::find(named, layer.layer, &KeptLayer::layer);
      if (seen != named.end()) layer.reason = seen->reason;
    }
    std::vector<KeptLayer> pinned = joined(by_range, named);
    std::vector<Candidate> candidates;
    if (!by_range.empty() || scale != plain.candidate.scale) {
      candidates.push_back(candidate(by_range, scale));
    }
    for (size_t i = by_range.size(); i < pinned.size() && candidates.size() < 3; ++i) {
      const auto end = pinned.begin() + static_cast<int64_t>(i) + 1;
      candidates.push_back(candidate({pinned.begin(), end}, scale));
    }
    if (scale.scales && scale.dynamic) {
      candidates.push_back(candidate(pinned, static_scaler(ranges)));
    }
    std::vector<PointSet> sets;  // still to run
    std::vector<size_t> points;  // of `candidates`, on the frontier
    for (bool from_frontier = false;; from_frontier = true) {
      const std::vector<Trial> trials = state_.try_all(candidates);
      for (size_t i = 0; i < std::min(points.size(), trials.size()); ++i) {
        advice_.frontier[points[i]].lane = trials[i].candidate.lane;
        advice_.frontier[points[i]].passes = trials[i].passes();
      }
      const auto passed = std::ranges::find_if(trials, [](auto& trial) { return trial.passes(); });
      if (passed != trials.end()) {
        return from_frontier ? without_culprits(*passed, by_range) : *passed;
      }
      if (advice_.out_of_budget) return std::nullopt;
      advice_.is_too_short = std::ranges::any_of(advice_.tried, &Trial::is_too_short);
      if (advice_.is_too_short) return std::nullopt;  // nothing tells more sets of layers apart
      if (from_frontier && sets.empty()) return without_culprits(std::nullopt, by_range);
      if (!from_frontier) {
        measure_scores(format);
        // With the findings that the last of them still has.
        if (!trials.empty()) pinned = joined(pinned, culprits(trials.back()));
        sets = frontier_sets(plain, pinned);
      }
      candidates.clear();
      points.clear();
      while (!sets.empty() && candidates.size() < kPointsAtOnce) {
        candidates.push_back(candidate(sets.front().layers, scale));
        points.push_back(sets.front().point);
        sets.erase(sets.begin());
      }
      if (candidates.empty()) return without_culprits(std::nullopt, by_range);
    }
  }

  // What the frontier found, or, if that keeps many layers in FP32 or nothing passed, the candidate
  // that keeps only `pinned` and the culprits, if that costs less.
  std::optional<Trial> without_culprits(std::optional<Trial> passed,
                                        const std::vector<KeptLayer>& pinned) {
    if (passed && passed->candidate.fp32.size() <= pinned.size() + kManyExceptions) return passed;
    LayerSet low;
    for (const std::string& layer : advice_.network.layers) {
      const bool is_nameable = layer.find_first_of("*?") == std::string::npos;
      if (is_nameable && !has_layer(pinned, layer)) low.push_back(layer);
    }
    const std::string& format = advice_.plain->candidate.format;
    const ScaleChoice scale = choose_scaler(*advice_.ranges_of(format), autocast_policy(format));
    const auto with = [&](const LayerSet& set) {
      std::vector<KeptLayer> fp32 = pinned;
      for (const std::string& layer : low) {
        if (std::ranges::find(set, layer) != set.end()) continue;
        fp32 = joined(std::move(fp32),
                      {{layer, fmt::format("found by halving: in {} it spoils the run", format)}});
      }
      return Candidate{.format = format, .fp32 = std::move(fp32), .scale = scale};
    };
    const std::optional<Trial> found = state_.without_culprits(low, with);
    if (!found) return passed;
    const bool is_better = !passed || found->cost.seconds < passed->cost.seconds;
    return is_better ? found : passed;
  }

  SensitivityTable scored(const std::string& format) const {
    SensitivityTable table;
    add_scores(RunFile(plain_path_), /*lane=*/1, format, advice_.network, advice_.network.layers,
               table);
    return table;
  }

  void measure_scores(const std::string& format) {
    SensitivityTable table = scored(format);
    std::map<std::string, int> scales;
    if (advice_.plain->candidate.scale.scales) {
      scales.emplace(format, advice_.ranges_of(format)->scale_exponent);
    }
    measure_some(state_.runs, advice_.network, scales, state_.budget_check(), table);
    state_.add_sensitivity(std::move(table));
  }

  SearchState& state_;
  Advice& advice_;
  std::string plain_path_;  // the run of plain autocast: FP32 and one lane
};

}  // namespace

Advice search(TrialRuns& runs, const SearchOptions& options) {
  SearchState state(runs, options);
  for (const std::string& format : options.formats) {
    if (find_narrow_format(format) != nullptr) continue;
    if (peak_rate(*options.gpu, format) == 0) {
      state.advice.narrow.push_back(
          {.format = format, .why_not = fmt::format("{} has no unit for it", options.gpu->name)});
      continue;
    }
    if (BaseSearch(state).run(format)) break;
    if (state.advice.answer == Advice::Answer::kFp32Broke) break;
  }
  const bool has_answer = state.advice.chosen || state.advice.answer == Advice::Answer::kFp32Broke;
  if (!has_answer && state.advice.is_too_short) state.advice.answer = Advice::Answer::kTooShort;
  if (state.advice.chosen) {
    search_narrow_formats(state);
    search_memory(state);
  }
  return std::move(state.advice);
}

}  // namespace lockstep
