// See part_search.h.
//
//   1. base, narrow  all parts in the base format and in every narrow one
//   2. except        all parts in every narrow format, the layer of each whose roundings move the
//                    loss most kept in the base format
//   3. choose        the knapsack over {base, except, narrow} of each part: the cheapest that
//                    stays within the tolerance
//   4. run           what was chosen; if it is not within the tolerance, the next in score
#include "analysis/parts/part_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "analysis/candidates/format_assignment.h"
#include "analysis/cost/network.h"
#include "analysis/search/trial_runs.h"
#include "src/core/error.h"
#include "src/core/text_hash.h"
#include "src/jobs/joined_run.h"
#include "src/jobs/parts_replay.h"
#include "src/record/run/play.h"
#include "src/record/run/run_end.h"
#include "src/record/run/run_lock.h"

namespace lockstep {
namespace {

constexpr int kMostRuns = 3;           // of what was chosen, in one format
constexpr double kStandardErrors = 2;  // of a bar
constexpr double kDrawnTwice = 2;      // of its variance

// What one lane does to every part.
struct Measured {
  std::vector<PartEffect> effects;
  std::vector<double> seconds, work;  // work: multiply-adds times bits of a factor
};

// Of one module in batches whose graphs differ: as if they were batches of one part.
PartEffect merged(const std::vector<PartEffect>& groups) {
  PartEffect all = groups.front();
  if (groups.size() == 1) return all;
  double count = 0, first = 0, second = 0, within = 0, between = 0;
  for (const PartEffect& one : groups) {
    const auto n = static_cast<double>(one.batches - one.nonfinite);
    count += n;
    if (n > 0) {
      first += n * one.first_order;
      second += n * (std::isnan(one.second_order) ? 0 : one.second_order);
    }
    if (&one == &groups.front()) continue;
    all.batches += one.batches;
    all.nonfinite += one.nonfinite;
    if (one.layer_share > all.layer_share) {
      all.layer = one.layer;
      all.layer_share = one.layer_share;
    }
    all.weight_gradient_error = std::max(all.weight_gradient_error, one.weight_gradient_error);
  }
  all.first_order = first / count;  // NaN: none is finite
  all.second_order = second / count;
  for (const PartEffect& one : groups) {
    const auto n = static_cast<double>(one.batches - one.nonfinite);
    if (n == 0) continue;
    if (n > 1) within += n * (n - 1) * one.spread * one.spread;
    between += n * (one.effect() - all.effect()) * (one.effect() - all.effect());
  }
  all.spread = count > 1 ? std::sqrt((within + between) / (count - 1) / count) : PartEffect::kNone;
  return all;
}

class PartSearch {
 public:
  PartSearch(const PartsIndex& index, const PartSearchOptions& options, const JobWatch& watch,
             const std::atomic<bool>& stop)
      : index_(index), options_(options), watch_(watch), stop_(stop) {}

  PartAdvice run() {
    advice_.tolerance = options_.tolerance;
    advice_.gpu = options_.gpu;
    advice_.base_format = options_.base;
    measure_all();
    advice_.base = {.format = "",
                    .candidate = make_candidate("parts-" + options_.base,
                                                plain_autocast(options_.base), evidence(), "")};
    plan(advice_.base, std::vector<PartChoice>(names_.size(), PartChoice::kBase), base_);
    if (!advice_.base.total.is_within(options_.tolerance)) {
      const PartTotal& total = advice_.base.total;
      const bool is_noise = total.is_finite && std::fabs(total.effect) <= options_.tolerance;
      advice_.answer = is_noise ? PartAdvice::Answer::kUnclear : PartAdvice::Answer::kNone;
      return std::move(advice_);
    }
    measure_exceptions();
    for (PartCandidate& one : advice_.tried) {
      if (one.why_not.empty()) choose(one);
    }
    advice_.answer = PartAdvice::Answer::kBase;
    for (size_t i = 0; i < advice_.tried.size(); ++i) {
      const PartCandidate& one = advice_.tried[i];
      const PartCandidate& best = advice_.used();
      // Estimates decide where they see a gain.
      const bool gains = std::min(one.seconds, best.seconds) < kNoGain * advice_.base.seconds;
      const bool is_better = gains ? one.seconds < best.seconds : one.work < best.work;
      if (!one.why_not.empty() || !is_better) continue;
      advice_.answer = PartAdvice::Answer::kNarrow;
      advice_.chosen = i;
    }
    return std::move(advice_);
  }

 private:
  // Replays the folder in these candidates, unless that was done; opens the run.
  void replay(const std::vector<Candidate>& candidates) {
    RunOptions options = options_.replay;
    options.lanes = {std::string(kReferenceLane)};
    options.policy_texts.clear();
    for (const Candidate& candidate : candidates) {
      options.lanes.push_back(candidate.lane);
      if (!candidate.is_preset()) options.policy_texts[candidate.lane] = candidate.toml;
    }
    if (hash_.empty()) hash_ = parts_hash(index_);
    const std::string identity = hash_ + make_job("", options).hash;
    if (lock_ == nullptr) lock_ = lock_search_folder(options_.folder);
    advice_.run = fmt::format("{}/{:016x}.h5", options_.folder, fnv1a(identity));
    ++advice_.replays;
    if (is_complete_run(advice_.run)) {
      ++advice_.read_again;
    } else if (!replay_parts(index_, {options, advice_.run, options_.command_line}, watch_,
                             stop_)) {
      throw SearchStopped();
    }
    run_.emplace(advice_.run);
    places_ = part_places(*run_);
  }

  // Of the run's lanes but the reference, in their order; by names_.
  std::vector<Measured> measured() {
    const Network network = read_network(*run_);
    std::vector<std::unique_ptr<PartTally>> tallies;
    std::vector<Observer*> observers;
    for (size_t lane = 1; lane < run_->lanes().size(); ++lane) {
      tallies.push_back(std::make_unique<PartTally>(*run_, places_, static_cast<int>(lane)));
      observers.push_back(tallies.back().get());
    }
    play(*run_, every_lane(*run_), observers);
    std::vector<Measured> found;
    for (size_t lane = 1; lane < run_->lanes().size(); ++lane) {
      const LaneInfo& info = run_->lanes()[lane];
      const std::vector<PartEffect> effects = tallies[lane - 1]->effects();
      const std::map<std::string, double> seconds =
          cost_of(network, policy_of(info), info.memory.value_or(network.memory), *options_.gpu)
              .by_layer;
      const std::map<std::string, double> work = bit_operations(network, policy_of(info));
      Measured& one = found.emplace_back();
      for (const std::string& name : names_) {
        std::vector<PartEffect> groups;
        const PartPlaces* first = nullptr;
        for (size_t p = 0; p < places_.size(); ++p) {
          if (module_of_part(places_[p].name) != module_of_part(name)) continue;
          groups.push_back(effects[p]);
          if (first == nullptr) first = &places_[p];
        }
        one.effects.push_back(merged(groups));
        one.effects.back().name = name;
        // Of several graphs of one module, the first one's.
        one.seconds.push_back(added(seconds, *first));
        one.work.push_back(added(work, *first));
      }
    }
    return found;
  }

  // Of the layers of a part.
  double added(const std::map<std::string, double>& by_layer, const PartPlaces& place) const {
    std::set<std::string> layers;
    for (const size_t s : place.sites) layers.insert(run_->sites().sites[s].layer);
    double sum = 0;
    for (const std::string& layer : layers) {
      const auto own = by_layer.find(layer);
      if (own != by_layer.end()) sum += own->second;
    }
    return sum;
  }

  std::string evidence() const {
    return fmt::format("From the parts of {} in {}, for a change of the loss within {}.",
                       index_.model_class, index_.folder, options_.tolerance);
  }

  // `narrow`: globs over layers.
  Candidate candidate(const std::string& format, const std::vector<std::string>& narrow,
                      const std::vector<KeptLayer>& kept) {
    Candidate made = plain_autocast(options_.base);
    made.narrow = format;
    made.not_narrow = joined(unaligned_, kept);
    made.only_narrow = narrow;
    return make_candidate(fmt::format("parts-{}-{}", format, ++number_), made, evidence(), "");
  }

  // The linear layers of a module.
  std::vector<std::string> globs_of(const std::string& module) const {
    require_literal(module);
    std::vector<std::string> globs;
    if (linear_.contains(module)) globs.push_back(module);
    const bool has_inner = std::ranges::any_of(
        linear_, [&](const std::string& layer) { return layer.starts_with(module + "."); });
    if (has_inner) globs.push_back(module + ".*");
    return globs;
  }

  // Round 1. Which layers there are is known after a run, so the base comes first.
  void measure_all() {
    replay({plain_autocast(options_.base)});
    for (const PartPlaces& place : places_) {
      const std::string module = module_of_part(place.name);
      if (std::ranges::find(modules_, module) != modules_.end()) continue;
      modules_.push_back(module);
      const bool is_alone = place.name.find(kAlone) != std::string::npos;
      names_.push_back(module + (is_alone ? std::string(kAlone) : ""));
      if (is_alone) advice_.not_counted.push_back(module);
    }
    base_ = measured().front();
    for (const PartEffect& effect : base_.effects) {
      advice_.batches = std::max(advice_.batches, effect.batches);
    }
    const Network network = read_network(*run_);
    for (const auto& [layer, extents] : network.unaligned) {
      unaligned_.push_back({in_model(layer), extents});
    }
    for (const std::string& layer : network.linear) linear_.insert(in_model(layer));
    std::vector<Candidate> candidates;
    for (const std::string& format : options_.formats) {
      PartCandidate& one = advice_.tried.emplace_back(PartCandidate{.format = format});
      if (peak_rate(*options_.gpu, find_narrow_format(format)->unit) == 0) {
        one.why_not = fmt::format("{} has no unit for it", options_.gpu->name);
      } else if (linear_.size() == joined(unaligned_, {}).size()) {
        one.why_not = "no linear layer fills its tiles";
      } else {
        candidates.push_back(candidate(format, counted_globs(), {}));
      }
    }
    if (candidates.empty()) return;
    replay(candidates);
    const std::vector<Measured> found = measured();
    size_t next = 0;
    for (PartCandidate& one : advice_.tried) {
      if (!one.why_not.empty()) continue;
      narrow_[one.format] = found[next++];
      for (const PartEffect& effect : narrow_[one.format].effects) {
        if (!effect.is_alone()) one.all_narrow.add(effect);
      }
    }
  }

  std::vector<std::string> counted_globs() const {
    std::vector<std::string> counted;
    for (const std::string& name : names_) {
      if (name == module_of_part(name)) add(counted, globs_of(name));
    }
    return counted;
  }
  static void add(std::vector<std::string>& to, const std::vector<std::string>& more) {
    to.insert(to.end(), more.begin(), more.end());
  }

  // Round 2.
  void measure_exceptions() {
    std::vector<Candidate> candidates;
    std::vector<std::string> formats;
    for (const auto& [format, measured] : narrow_) {
      std::vector<KeptLayer> kept;
      for (const PartEffect& effect : measured.effects) {
        const std::string worst = in_model(effect.layer);
        const bool is_inner = worst != effect.name;
        if (!effect.is_alone() && is_inner && linear_.contains(worst) &&
            !has_layer(unaligned_, worst)) {
          kept.push_back({worst, fmt::format("{:.0f} % of what its part's roundings do to the loss",
                                             100 * effect.layer_share)});
          worst_[format][effect.name] = kept.back();
        }
      }
      if (kept.empty()) continue;
      candidates.push_back(candidate(format, counted_globs(), kept));
      formats.push_back(format);
    }
    if (candidates.empty()) return;
    replay(candidates);
    const std::vector<Measured> found = measured();
    for (size_t i = 0; i < formats.size(); ++i) except_[formats[i]] = found[i];
  }

  const Measured& source_of(const std::string& format, PartChoice choice) const {
    if (choice == PartChoice::kBase) return base_;
    return choice == PartChoice::kNarrow ? narrow_.at(format) : except_.at(format);
  }

  void plan(PartCandidate& one, const std::vector<PartChoice>& choices, const Measured& as_run) {
    one.parts.clear();
    one.total = {};
    one.seconds = one.work = 0;
    for (size_t p = 0; p < names_.size(); ++p) {
      if (base_.effects[p].is_alone()) continue;
      PartPlan& part = one.parts.emplace_back();
      part.part = names_[p];
      part.choice = choices[p];
      if (part.choice == PartChoice::kExcept) part.kept = worst_[one.format][names_[p]].layer;
      part.effect = as_run.effects[p];
      part.seconds = as_run.seconds[p];
      part.work = as_run.work[p];
      one.total.add(part.effect);
      one.seconds += part.seconds;
      one.work += part.work;
    }
    one.with_between = one.total;
  }

  bool can_narrow(const std::string& module) const {
    return std::ranges::any_of(linear_, [&](const std::string& layer) {
      return is_inside(layer, module) && !has_layer(unaligned_, layer);
    });
  }

  // Rounds 3 and 4.
  void choose(PartCandidate& one) {
    constexpr PartChoice kChoices[] = {PartChoice::kBase, PartChoice::kExcept, PartChoice::kNarrow};
    AssignmentProblem problem;
    std::vector<size_t> counted;                        // parts that are not inside others
    std::vector<std::vector<PartChoice>> open_choices;  // of them
    for (size_t p = 0; p < names_.size(); ++p) {
      if (base_.effects[p].is_alone()) continue;
      counted.push_back(p);
      auto& open = open_choices.emplace_back();
      auto& costs = problem.layers.emplace_back();
      for (const PartChoice choice : kChoices) {
        const bool has_exception =
            except_.contains(one.format) && worst_[one.format].contains(names_[p]);
        if (choice == PartChoice::kExcept && !has_exception) continue;
        if (choice == PartChoice::kNarrow && !can_narrow(names_[p])) continue;
        const Measured& from = source_of(one.format, choice);
        PartTotal own;
        own.add(from.effects[p]);
        if (!own.is_finite) continue;
        open.push_back(choice);
        costs.push_back(
            {.cost = from.work[p], .score = std::fabs(own.effect) + own.error(), .side = 0});
      }
    }
    const std::vector<Assignment> frontier = assignment_frontier(problem);
    int runs = 0;
    for (auto point = frontier.rbegin(); point != frontier.rend(); ++point) {
      std::vector<PartChoice> choices(names_.size(), PartChoice::kNarrow);
      PartTotal predicted;
      for (size_t i = 0; i < counted.size(); ++i) {
        const PartChoice choice = open_choices[i][point->choice[i]];
        choices[counted[i]] = choice;
        predicted.add(source_of(one.format, choice).effects[counted[i]]);
      }
      if (!predicted.is_within(options_.tolerance)) continue;
      const bool is_base =
          std::ranges::all_of(counted, [&](size_t p) { return choices[p] == PartChoice::kBase; });
      if (is_base || runs == kMostRuns) break;
      ++runs;
      take(one, choices);
      if (one.total.is_within(options_.tolerance)) return;
    }
    one.why_not = runs == 0 ? "no part fits" : "not as predicted";
  }

  void take(PartCandidate& one, const std::vector<PartChoice>& choices) {
    std::vector<KeptLayer> kept;
    std::vector<std::string> narrow;
    for (size_t p = 0; p < names_.size(); ++p) {
      if (base_.effects[p].is_alone() || choices[p] == PartChoice::kBase) continue;
      add(narrow, globs_of(names_[p]));
      if (choices[p] == PartChoice::kExcept) kept.push_back(worst_[one.format][names_[p]]);
    }
    one.candidate = candidate(one.format, narrow, kept);
    replay({*one.candidate});
    plan(one, choices, measured().front());
    if (options_.interpolates) add_between(one, std::move(narrow), std::move(kept));
  }

  // What was not captured between two parts, in their wider choice; unless the sum is not within
  // the tolerance then.
  void add_between(PartCandidate& one, std::vector<std::string> narrow,
                   std::vector<KeptLayer> kept) {
    constexpr std::string_view kReason = "not measured: as in a neighbour";
    std::vector<PartPlan> found;
    for (auto& [part, like] : between_parts(one)) {
      one.with_between.add(part.effect);
      found.push_back(part);
      if (part.choice == PartChoice::kBase) continue;
      const Numbered own = numbered(part.part);
      for (const std::string& layers : globs_of(like)) narrow.push_back(moved(layers, own.number));
      for (const KeptLayer& layer : unaligned_) {
        if (!is_inside(layer.layer, like)) continue;
        kept.push_back({moved(layer.layer, own.number), std::string(kReason)});
      }
      if (part.choice == PartChoice::kExcept) kept.push_back({part.kept, std::string(kReason)});
    }
    one.refuses_between = !one.with_between.is_within(options_.tolerance);
    if (one.refuses_between || found.empty()) return;
    one.parts.insert(one.parts.end(), found.begin(), found.end());
    one.candidate = candidate(one.format, narrow, kept);
  }

  // "model.layers.", 16, "": a module's path around its first number.
  struct Numbered {
    std::string before, after;
    int64_t number = -1;
  };
  static Numbered numbered(const std::string& path) {
    Numbered found;
    size_t begin = 0;
    while (begin < path.size()) {
      const size_t end = std::min(path.find('.', begin), path.size());
      int64_t number = -1;
      const char* const last = path.data() + end;
      const auto [stop, error] = std::from_chars(path.data() + begin, last, number);
      if (error == std::errc() && stop == last) {
        found = {path.substr(0, begin), path.substr(end), number};
        break;
      }
      begin = end + 1;
    }
    return found;
  }

  // A layer of a part's sibling.
  static std::string moved(const std::string& layer, int64_t number) {
    const Numbered from = numbered(layer);
    return fmt::format("{}{}{}", from.before, number, from.after);
  }

  // Parts that were not captured, between two that were: the wider choice of the two, and their
  // effects by distance; each with the neighbour whose choice it has.
  static std::vector<std::pair<PartPlan, std::string>> between_parts(const PartCandidate& one) {
    std::map<std::pair<std::string, std::string>, std::map<int64_t, const PartPlan*>> families;
    for (const PartPlan& part : one.parts) {
      const Numbered path = numbered(part.part);
      if (path.number >= 0) families[{path.before, path.after}][path.number] = &part;
    }
    std::vector<std::pair<PartPlan, std::string>> found;
    for (const auto& [path, members] : families) {
      for (auto here = members.begin(); here != members.end() && std::next(here) != members.end();
           ++here) {
        const auto& [first, low] = *here;
        const auto& [last, high] = *std::next(here);
        for (int64_t n = first + 1; n < last; ++n) {
          const double share = static_cast<double>(n - first) / static_cast<double>(last - first);
          const auto mix = [&](double a, double b) { return a + share * (b - a); };
          auto& [part, like] = found.emplace_back();
          part.part = fmt::format("{}{}{}", path.first, n, path.second);
          part.is_between = true;
          part.choice = std::min(low->choice, high->choice);
          const PartPlan& wider = part.choice == low->choice ? *low : *high;
          like = wider.part;
          if (part.choice == PartChoice::kExcept) part.kept = moved(wider.kept, n);
          part.seconds = mix(low->seconds, high->seconds);
          part.effect.name = part.part;
          part.effect.batches = std::min(low->effect.batches, high->effect.batches);
          part.effect.first_order = mix(low->effect.effect(), high->effect.effect());
          part.effect.spread = std::max(low->effect.spread, high->effect.spread);
        }
      }
    }
    return found;
  }

  static bool is_inside(const std::string& layer, const std::string& part) {
    return layer == part || layer.starts_with(part + ".");
  }

  // A layer of the run by its path in the model: a part's name may say more than its module.
  std::string in_model(const std::string& layer) const {
    const PartPlaces* own = nullptr;
    for (const PartPlaces& place : places_) {
      const bool is_closer = own == nullptr || place.name.size() > own->name.size();
      if (is_inside(layer, place.name) && is_closer) own = &place;
    }
    if (own == nullptr) return layer;
    return module_of_part(own->name) + layer.substr(own->name.size());
  }

  const PartsIndex& index_;
  const PartSearchOptions& options_;
  const JobWatch& watch_;
  const std::atomic<bool>& stop_;
  PartAdvice advice_;
  std::optional<RunFile> run_;  // the last one
  std::vector<PartPlaces> places_;
  std::vector<std::string> modules_, names_;  // of parts; names_: kAlone at the end where it is
  std::vector<KeptLayer> unaligned_;
  std::set<std::string> linear_;  // paths in the model
  Measured base_;
  std::map<std::string, Measured> narrow_, except_;                // by format
  std::map<std::string, std::map<std::string, KeptLayer>> worst_;  // by format and part
  std::shared_ptr<RunLock> lock_;
  std::string hash_;  // of the captures
  int number_ = 0;
};

}  // namespace

void PartTotal::add(const PartEffect& part) {
  ++parts;
  if (part.nonfinite > 0 || !std::isfinite(part.effect())) is_finite = false;
  effect += part.effect();
  if (std::isnan(part.spread)) {
    has_error = false;
  } else {
    variance += part.spread * part.spread;
  }
}

double PartTotal::error() const {
  return kStandardErrors * std::sqrt(kDrawnTwice * variance);
}

bool PartTotal::is_within(double tolerance) const {
  return is_finite && std::fabs(effect) + error() <= tolerance;
}

size_t PartCandidate::count_of(PartChoice choice) const {
  return static_cast<size_t>(std::ranges::count_if(
      parts, [&](const PartPlan& part) { return part.choice == choice && !part.is_between; }));
}

PartAdvice search_parts(const PartsIndex& index, const PartSearchOptions& options,
                        const JobWatch& watch, const std::atomic<bool>& stop) {
  return PartSearch(index, options, watch, stop).run();
}

}  // namespace lockstep
