// See search.h.
#include "analysis/recommend/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "analysis/findings/finding_kinds.h"
#include "analysis/recommend/range_samples.h"

namespace lockstep {
namespace {

constexpr size_t kLanesPerReplay = 4;  // candidates
constexpr size_t kFindingsToFollow = 3;

class Search {
 public:
  Search(TrialRuns& runs, const std::vector<std::string>& formats, int64_t budget)
      : runs_(runs), formats_(formats), left_(budget) {}

  Advice run() {
    for (const std::string& format : formats_) {
      const std::vector<Trial> first = runs_.run(std::vector{plain_autocast(format)});
      note(first);
      const Trial& plain = first.front();
      if (advice_.ranges.empty()) read_trace();
      if (!std::isfinite(plain.reference_loss)) {
        advice_.answer = Advice::Answer::kFp32Broke;
        return std::move(advice_);
      }
      if (plain.judgement.verdict == Verdict::kTooShort) {
        advice_.answer = Advice::Answer::kTooShort;
        return std::move(advice_);
      }
      if (plain.passes()) return chosen(plain, Advice::Answer::kPlain);
      std::optional<Trial> passed = with_exceptions(plain, *advice_.ranges_of(format));
      if (!passed) continue;
      make_smaller(*passed, plain);
      return chosen(*passed, Advice::Answer::kExceptions);
    }
    advice_.answer = Advice::Answer::kFp32;
    return std::move(advice_);
  }

 private:
  Advice chosen(const Trial& trial, Advice::Answer answer) {
    advice_.answer = answer;
    advice_.chosen = trial;
    return std::move(advice_);
  }

  void note(const std::vector<Trial>& trials) {
    advice_.tried.insert(advice_.tried.end(), trials.begin(), trials.end());
  }

  void read_trace() {
    const RunFile trace(runs_.last_path());
    evidence_ = fmt::format("{} steps of {}", trace.steps(), trace.options().model);
    advice_.steps = trace.steps();
    advice_.sites = trace.sites();
    for (const std::string& format : formats_) {
      advice_.ranges.push_back(
          make_range_table(range_samples(trace, autocast_policy(format)), find_format(format)));
    }
    for (const LayerRange& layer : advice_.ranges.front().layers) {
      advice_.layers.push_back(layer.layer);
    }
  }

  // Runs as many as the budget allows, the first first.
  std::vector<Trial> try_all(std::vector<Candidate> candidates) {
    std::vector<Trial> trials;
    for (size_t at = 0; at < candidates.size();) {
      const size_t count = std::min({kLanesPerReplay, candidates.size() - at,
                                     static_cast<size_t>(std::max<int64_t>(left_, 0))});
      if (count == 0) {
        advice_.out_of_budget = true;
        break;
      }
      const auto part = runs_.run(std::span(candidates).subspan(at, count));
      note(part);
      trials.insert(trials.end(), part.begin(), part.end());
      at += count;
      left_ -= static_cast<int64_t>(count);
    }
    return trials;
  }

  Candidate candidate(const std::string& format, std::vector<LayerInFp32> fp32,
                      const ScaleChoice& scale) {
    return make_candidate(fmt::format("{}-{}", format, ++number_), format, std::move(fp32), scale,
                          "Found by running candidates and fp32 side by side: " + evidence_ + ".",
                          interval_sentence(*advice_.ranges_of(format)));
  }

  // Layers that the findings of a failed trial name, with their sentences, and the one whose
  // roundings move the loss most.
  std::vector<LayerInFp32> culprits(const Trial& trial) const {
    std::vector<LayerInFp32> found;
    const auto add = [&](const std::string& layer, const std::string& reason) {
      const bool known = std::ranges::any_of(found, [&](auto& l) { return l.layer == layer; });
      if (!known && std::ranges::count(advice_.layers, layer) > 0) found.push_back({layer, reason});
    };
    for (size_t i = 0; i < std::min(kFindingsToFollow, trial.findings.size()); ++i) {
      const Finding& finding = trial.findings[i];
      if (finding.site < 0) continue;
      const FindingContext context{finding, advice_.sites, trial.candidate.scale.scales,
                                   trial.steps};
      const std::string why = row_of(finding.kind).sentence(context);
      add(context.site().layer, why);
      if (finding.cause >= 0) {
        add(advice_.sites.sites[static_cast<size_t>(finding.cause)].layer, why);
      }
    }
    for (const auto& [layer, share] : trial.moved_by) {
      if (found.size() > kFindingsToFollow) break;
      add(layer, fmt::format("its roundings move the loss most ({:.0f}% of all)", 100 * share));
    }
    return found;
  }

  static std::vector<LayerInFp32> joined(std::vector<LayerInFp32> layers,
                                         const std::vector<LayerInFp32>& more) {
    for (const LayerInFp32& one : more) {
      if (std::ranges::none_of(layers, [&](auto& l) { return l.layer == one.layer; })) {
        layers.push_back(one);
      }
    }
    return layers;
  }

  // The candidate that passes with the fewest layers in FP32; each round doubles them.
  std::optional<Trial> with_exceptions(const Trial& plain, const RangeTable& ranges) {
    const std::string& format = plain.candidate.format;
    const Policy base = autocast_policy(format);
    const ScaleChoice scale = choose_scaler(ranges, base);
    const std::vector<LayerInFp32> named = culprits(plain);
    std::vector<LayerInFp32> by_range = layers_out_of_range(ranges);
    for (LayerInFp32& layer : by_range) {  // what was seen says more than the range
      const auto seen =
          std::ranges::find_if(named, [&](auto& l) { return l.layer == layer.layer; });
      if (seen != named.end()) layer.reason = seen->reason;
    }
    std::vector<LayerInFp32> more = joined(by_range, named);
    std::vector<Candidate> candidates;
    const bool other_scale = scale.start != plain.candidate.scale.start ||
                             scale.dynamic != plain.candidate.scale.dynamic;
    if (!by_range.empty() || other_scale) candidates.push_back(candidate(format, by_range, scale));
    for (size_t i = by_range.size(); i < more.size() && candidates.size() < 3; ++i) {
      candidates.push_back(
          candidate(format, {more.begin(), more.begin() + static_cast<int64_t>(i) + 1}, scale));
    }
    if (scale.scales && scale.dynamic) {
      candidates.push_back(candidate(format, more, static_scaler(ranges)));
    }
    size_t largest = 0;  // of the sets that failed
    for (;;) {
      for (const Candidate& one : candidates) largest = std::max(largest, one.fp32.size());
      const std::vector<Trial> trials = try_all(std::move(candidates));
      const auto passed = std::ranges::find_if(trials, [](auto& trial) { return trial.passes(); });
      if (passed != trials.end()) return *passed;
      if (advice_.out_of_budget || largest >= advice_.layers.size()) return std::nullopt;
      if (largest >= more.size()) {
        // By what the last of them still suffers from, then by what moves the loss.
        const size_t wanted = std::max(2 * more.size(), more.size() + 2);
        if (!trials.empty()) more = joined(more, culprits(trials.back()));
        for (const auto& [layer, share] : plain.moved_by) {
          if (more.size() >= wanted) break;
          if (std::ranges::count(advice_.layers, layer) == 0) continue;
          more = joined(
              more,
              {{layer, fmt::format("its roundings move the loss ({:.0f}% of all)", 100 * share)}});
        }
        for (const std::string& layer : advice_.layers) {
          if (more.size() >= wanted) break;
          more = joined(more, {{layer, "no smaller set of layers was found to suffice"}});
        }
      }
      candidates = {candidate(format, more, scale)};
    }
  }

  // Lets layers go: each alone, those that can go then together, or else the first of them. Plain
  // autocast has failed.
  void make_smaller(Trial& passed, const Trial& plain) {
    const auto same_scale = [](const ScaleChoice& a, const ScaleChoice& b) {
      return a.dynamic == b.dynamic && a.start == b.start;
    };
    while (!passed.candidate.fp32.empty()) {
      const std::vector<LayerInFp32>& layers = passed.candidate.fp32;
      const auto without = [&](const std::set<std::string>& gone) {
        std::vector<LayerInFp32> rest;
        std::ranges::copy_if(layers, std::back_inserter(rest),
                             [&](auto& l) { return !gone.contains(l.layer); });
        return candidate(passed.candidate.format, std::move(rest), passed.candidate.scale);
      };
      if (layers.size() == 1 && same_scale(passed.candidate.scale, plain.candidate.scale)) {
        advice_.without.emplace(layers.front().layer, plain);
        return;
      }
      std::vector<Candidate> smaller;
      for (const LayerInFp32& layer : layers) smaller.push_back(without({layer.layer}));
      const std::vector<Trial> trials = try_all(std::move(smaller));
      advice_.without.clear();
      std::set<std::string> can_go;
      std::optional<Trial> first;
      for (size_t i = 0; i < trials.size(); ++i) {
        if (!trials[i].passes()) {
          advice_.without.emplace(layers[i].layer, trials[i]);
          continue;
        }
        can_go.insert(layers[i].layer);
        if (!first) first = trials[i];
      }
      if (!first || advice_.out_of_budget) {
        if (first) passed = *first;
        return;
      }
      if (can_go.size() > 1 && left_ > 0) {
        const std::vector<Trial> together = try_all({without(can_go)});
        if (!together.empty() && together.front().passes()) first = together.front();
      }
      passed = *first;
    }
  }

  TrialRuns& runs_;
  const std::vector<std::string>& formats_;
  int64_t left_;  // candidates
  int number_ = 0;
  std::string evidence_;
  Advice advice_;
};

}  // namespace

const RangeTable* Advice::ranges_of(const std::string& format) const {
  const auto found =
      std::ranges::find_if(ranges, [&](const RangeTable& r) { return r.format->name == format; });
  return found == ranges.end() ? nullptr : &*found;
}

Advice search(TrialRuns& runs, const std::vector<std::string>& formats, int64_t budget) {
  return Search(runs, formats, budget).run();
}

}  // namespace lockstep
