// See narrow_search.h.
//
//   1. prune      no such unit on the GPU, in FP32 already, extents that do not fill the tiles
//   2. all        the cheapest assignment by the estimate; if it passes, nothing else is run
//   3. score      from that run; some layers are measured alone
//                 (measured_sensitivity.h)
//   4. frontier   the knapsack over {base, narrow} of each layer
//   5. bisection  the cheapest point that passes; several points share a replay
//   6. culprits   where that leaves many layers out, or nothing passes (culprits.h)
//   7. demotion   layers that the point left in the base format become narrow, one by one
#include "analysis/search/narrow_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "analysis/search/measured_sensitivity.h"

namespace lockstep {
namespace {

constexpr size_t kMostPoints = 16;
constexpr size_t kNarrowPointsAtOnce = 3;

class NarrowSearch {
 public:
  NarrowSearch(SearchState& state, std::string format)
      : state_(state), advice_(state.advice), format_(std::move(format)), base_(*advice_.chosen) {}

  NarrowOutcome run() {
    NarrowOutcome out{.format = format_};
    out.why_not = prune();
    if (!out.why_not.empty()) return out;
    set_costs(out);
    const std::optional<Trial> all = try_all_narrow();
    if (!all) {
      out.why_not = "the --budget ended the search";
      return out;
    }
    out.passed = all->passes() ? all : without_culprits(bisect(*all));
    if (!out.passed) {
      out.why_not = "no set of layers in it trained as fp32 does";
      return out;
    }
    if (!all->passes()) {
      state_.let_go(*out.passed, &Candidate::not_narrow, fixed_, &*all);
    }
    out.linear = advice_.network.linear.size() - out.passed->candidate.not_narrow.size() - in_fp32_;
    out.is_faster = out.passed->cost.seconds < base_.cost.seconds;
    return out;
  }

 private:
  // Sorts the linear layers into narrow_ and those that cannot be. Returns why none can.
  std::string prune() {
    if (peak_rate(*state_.options.gpu, find_narrow_format(format_)->unit) == 0) {
      return fmt::format("{} has no unit for it", state_.options.gpu->name);
    }
    const Network& network = advice_.network;
    if (network.linear.empty()) return "the network has no linear layer";
    for (const std::string& layer : network.linear) {
      if (has_layer(base_.candidate.fp32, layer)) {
        ++in_fp32_;
        continue;
      }
      const auto unaligned = network.unaligned.find(layer);
      if (unaligned == network.unaligned.end()) {
        narrow_.push_back(layer);
        continue;
      }
      kept_.push_back({layer, unaligned->second});
      fixed_.push_back(layer);
    }
    return narrow_.empty() ? "no linear layer fills its tiles" : "";
  }

  Candidate with(const std::vector<KeptLayer>& not_narrow) const {
    Candidate candidate = base_.candidate;
    candidate.narrow = format_;
    candidate.not_narrow = joined(kept_, not_narrow);
    return candidate;
  }

  // By the time of the estimate; by the bits of the factors where that sees no gain.
  void set_costs(NarrowOutcome& out) {
    const Policy all = policy_of(state_.named(with({})));
    const Policy base = policy_of(base_.candidate);
    const StepCost narrow = cost_of(advice_.network, all, base_.memory, *state_.options.gpu);
    out.is_faster = narrow.seconds < base_.cost.seconds;
    const auto low = out.is_faster ? narrow.by_layer : bit_operations(advice_.network, all);
    const auto high = out.is_faster ? base_.cost.by_layer : bit_operations(advice_.network, base);
    for (const std::string& layer : narrow_) {
      problem_.layers.push_back({{high.at(layer), 0, 0}, {low.at(layer), 0, 0}});
    }
  }

  // The candidate with these of narrow_ narrow.
  Candidate candidate_of(const Assignment& point) {
    std::vector<KeptLayer> not_narrow;
    for (size_t i = 0; i < narrow_.size(); ++i) {
      if (point.choice[i] == 1) continue;
      not_narrow.push_back(
          {narrow_[i], fmt::format("a score of {:.2g} in {}: of the frontier, the cheapest set "
                                   "that passed leaves it out",
                                   problem_.layers[i][1].score, format_)});
    }
    return state_.named(with(not_narrow));
  }

  std::optional<Trial> try_all_narrow() {
    const std::vector<Trial> trials = state_.try_all({state_.named(with({}))});
    if (trials.empty()) return std::nullopt;
    return trials.front();
  }

  void score() {
    const RunFile run(state_.runs.last_path());
    SensitivityTable table;
    add_scores(run, /*lane=*/1, format_, advice_.network, narrow_, table);
    measure_some(state_.runs, advice_.network, {}, state_.budget_check(), table);
    for (size_t i = 0; i < narrow_.size(); ++i) problem_.layers[i][1].score = table.layers[i].score;
    state_.add_sensitivity(std::move(table));
  }

  // The cheapest point of the frontier that passes; several are tried at once.
  std::optional<Trial> bisect(const Trial& all) {
    score();
    const std::vector<Assignment> frontier = thinned(assignment_frontier(problem_), kMostPoints);
    const size_t first_point = advice_.frontier.size();
    for (const Assignment& point : frontier) {
      const auto layers = static_cast<size_t>(std::ranges::count(point.choice, size_t{1}));
      advice_.frontier.push_back({.format = format_,
                                  .layers = layers,
                                  .cost = point.cost / frontier.front().cost,
                                  .score = point.score,
                                  .lane = layers == narrow_.size() ? all.candidate.lane : ""});
    }
    // Point 0 has no narrow layer: the base, which passes. All of them have failed.
    size_t good = 0, bad = frontier.size();
    if (frontier.back().choice == std::vector<size_t>(narrow_.size(), 1)) --bad;
    std::optional<Trial> best;
    while (bad - good > 1) {
      std::vector<size_t> points;
      for (size_t i = 1; i <= kNarrowPointsAtOnce; ++i) {
        const size_t at = good + (bad - good) * i / (kNarrowPointsAtOnce + 1);
        if (at > good && at < bad && std::ranges::find(points, at) == points.end()) {
          points.push_back(at);
        }
      }
      std::vector<Candidate> candidates;
      for (const size_t at : points) candidates.push_back(candidate_of(frontier[at]));
      const std::vector<Trial> trials = state_.try_all(candidates);
      if (trials.size() < points.size()) return best;
      for (size_t i = 0; i < points.size(); ++i) {
        FrontierPoint& point = advice_.frontier[first_point + points[i]];
        point.lane = trials[i].candidate.lane;
        point.passes = trials[i].passes();
        if (trials[i].passes()) {
          good = points[i];
          best = trials[i];
        } else {
          bad = points[i];
          break;
        }
      }
    }
    return best;
  }

  // As in search.cc: compared with the point of the frontier that passed, if any.
  std::optional<Trial> without_culprits(std::optional<Trial> passed) {
    const size_t fixed = kept_.size();
    if (passed && passed->candidate.not_narrow.size() <= fixed + kManyExceptions) return passed;
    if (narrow_.size() < 2 || advice_.out_of_budget) return passed;
    const std::optional<Trial> found = state_.without_culprits(narrow_, [&](const LayerSet& set) {
      std::vector<KeptLayer> not_narrow;
      for (const std::string& layer : narrow_) {
        if (std::ranges::find(set, layer) != set.end()) continue;
        not_narrow.push_back(
            {layer, fmt::format("found by halving: in {} it spoils the run", format_)});
      }
      return with(not_narrow);
    });
    if (!found) return passed;
    const bool is_better = !passed || found->cost.seconds < passed->cost.seconds;
    return is_better ? found : passed;
  }

  SearchState& state_;
  Advice& advice_;
  const std::string format_;
  const Trial base_;
  std::vector<std::string> narrow_, fixed_;  // layers that may be narrow, and that cannot
  std::vector<KeptLayer> kept_;              // of fixed_
  size_t in_fp32_ = 0;
  AssignmentProblem problem_;  // of narrow_; option 0 is the base, option 1 narrow
};

// TF32 where factors are in FP32 now.
void try_tf32(SearchState& state) {
  Trial& chosen = *state.advice.chosen;
  NarrowOutcome out{.format = "tf32"};
  if (is_tf32(chosen.candidate.format)) return;
  if (chosen.candidate.fp32.empty()) {
    out.why_not = "no layer is in fp32";
  } else {
    Candidate candidate = chosen.candidate;
    candidate.tf32 = true;
    const std::vector<Trial> trials = state.try_all({state.named(candidate)});
    if (trials.empty()) {
      out.why_not = "the --budget ended the search";
    } else if (!trials.front().passes()) {
      out.why_not = "the fp32 layers need full precision";
    } else {
      out.passed = trials.front();
      out.is_faster = out.passed->cost.seconds < chosen.cost.seconds;
    }
  }
  if (out.passed && out.is_faster) chosen = *out.passed;
  state.advice.narrow.push_back(std::move(out));
}

}  // namespace

void search_narrow_formats(SearchState& state) {
  Advice& advice = state.advice;
  std::optional<Trial> best;
  const auto without = advice.without;  // of the base
  auto best_without = without;
  for (const std::string& format : state.options.formats) {
    if (find_narrow_format(format) == nullptr) continue;
    NarrowOutcome out = NarrowSearch(state, format).run();
    const auto its_own = std::exchange(advice.without, without);
    if (out.passed && out.is_faster && (!best || out.passed->cost.seconds < best->cost.seconds)) {
      best = out.passed;
      best_without = its_own;
    }
    advice.narrow.push_back(std::move(out));
  }
  if (best) {
    advice.without = best_without;
    advice.chosen = best;
    advice.answer = Advice::Answer::kExceptions;
  }
  if (std::ranges::any_of(state.options.formats, is_tf32)) try_tf32(state);
}

}  // namespace lockstep
