// See fix.h.
#include "analysis/fix/fix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <tuple>

#include "analysis/candidates/policy_edit.h"
#include "analysis/findings/finding_kinds.h"
#include "analysis/search/proof.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/json.h"
#include "src/policy/find_policy.h"
#include "src/update/optimizers.h"

namespace lockstep {
namespace {

constexpr int kMostRounds = 8;
constexpr size_t kFindingsToFollow = 3;  // of one round, where the gravest's remedies do nothing

std::string layer_of_finding(const SiteTable& sites, const Finding& finding) {
  return finding.site < 0 ? "" : sites.sites[static_cast<size_t>(finding.site)].layer;
}

// The layers with a finding of this kind.
std::set<std::string> layers_with(FindingKind kind, const Trial& trial, const FixScene& scene) {
  std::set<std::string> layers;
  for (const Finding& finding : trial.findings) {
    if (finding.kind == kind) layers.insert(layer_of_finding(scene.sites, finding));
  }
  return layers;
}

// |loss - FP32's| in the step that both began with the same weights, relative to FP32's; infinite
// without such a step.
double gap_at_equal_weights(const Trial& trial) {
  const double error = trial.equal.step < 0 ? NAN : trial.equal.error();
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

// Whether its gap at equal weights is less than half of the other's. Gaps below one unit roundoff
// of FP16 count as equal: the smaller edit is preferred then.
bool is_closer(const Trial& trial, const Trial& than) {
  constexpr double kNoGap = kLeastShare / kRoundoffs;
  const auto gap = [&](const Trial& t) { return std::max(gap_at_equal_weights(t), kNoGap); };
  return gap(trial) < gap(than) / 2;
}

// The share of FP32's fall; 0 where its loss rose.
double tolerated_fall(const Trial& trial) {
  return std::max(kToleratedShare * trial.reference_fall, 0.0);
}

// What a round may try.
struct Choice {
  std::vector<RemedyEdit> edits;
  int remedy = 0;
  bool told = true;
};

class Fixer {
 public:
  Fixer(TrialRuns& runs, const FixLane& lane, const SearchBudget& budget)
      : runs_(runs), lane_(lane), budget_(budget) {}

  Fix run() {
    const std::vector<RemedyEdit> nothing;
    fix_.before = run_one(nothing);
    scene_ = first_scene_ = read_scene();
    now_ = fix_.before;
    if (!now_.findings.empty()) fix_.before_sentence = sentence(now_.findings.front());
    if (!std::isfinite(now_.reference_loss)) return ended(Fix::Answer::kFp32Broke);
    if (now_.findings.empty()) {
      return ended(grade_of_loss(now_) != FixGrade::kNo ? Fix::Answer::kNothingWrong
                                                        : Fix::Answer::kNoFinding);
    }
    for (int round = 0; round < kMostRounds && !now_.findings.empty(); ++round) {
      const std::optional<FixTrial> next = one_round();
      if (!next) return ended(Fix::Answer::kNothingHelped);
      edits_ = next->edits;
      now_ = next->trial;
      scene_ = next->scene;
      if (next->grade != FixGrade::kNo) {
        make_smaller();
        return ended(Fix::Answer::kFixed);
      }
    }
    return ended(Fix::Answer::kNothingHelped);
  }

 private:
  Fix ended(Fix::Answer answer) {
    fix_.answer = answer;
    return std::move(fix_);
  }

  std::shared_ptr<const FixScene> read_scene() const {
    const RunFile trace(runs_.last_path());
    return std::make_shared<FixScene>(FixScene{trace.sites(), graph_from_json(trace.graph_json())});
  }

  std::string sentence(const Finding& finding) const {
    return row_of(finding.kind).sentence(context(finding));
  }
  FindingContext context(const Finding& finding) const {
    const Policy policy = parse_policy(policy_text(edits_), "the policy");
    return {finding, scene_->sites, find_loss_scaler(policy.loss_scale.kind).scales, now_.steps};
  }

  std::string policy_text(const std::vector<RemedyEdit>& edits, int number = 0) const {
    return edited_policy(lane_.toml, fmt::format("fix-{}", number), edits);
  }

  Candidate candidate(const std::vector<RemedyEdit>& edits) {
    const int number = number_++;
    const std::string target = lane_.target.empty() ? "" : "@" + lane_.target;
    return {.lane = fmt::format("fix-{}.toml{}", number, target),
            .format = "",
            .fp32 = {},
            .scale = {},
            .toml = policy_text(edits, number)};
  }

  // The run's options with the changes that edits make to the run itself.
  RunOptions options_with(const std::vector<RemedyEdit>& edits) const {
    RunOptions options = runs_.options();
    for (const RemedyEdit& edit : edits) {
      options.rewrites.insert(options.rewrites.end(), edit.rewrites.begin(), edit.rewrites.end());
      for (const auto& [name, value] : edit.changes) {
        if (!options.capture_hash.empty()) {
          options.loop_changes[name] = value;
        } else if (name == "clip_norm") {
          options.clip_norm = value;
        } else {
          options.optimizer.values[name] = value;
        }
      }
    }
    return options;
  }

  Trial run_one(const std::vector<RemedyEdit>& edits) {
    return runs_.run(std::vector{candidate(edits)}, options_with(edits)).front();
  }

  // Runs as many as the budget allows; those whose edits are refused say why.
  std::vector<FixTrial> try_all(const std::vector<std::vector<RemedyEdit>>& all) {
    std::vector<FixTrial> tried;
    const size_t count = budget_.take(all.size());
    if (count < all.size()) fix_.out_of_budget = true;
    std::vector<Candidate> candidates;
    const bool together = std::none_of(
        all.begin(), all.begin() + static_cast<int64_t>(count),
        [](const auto& edits) { return std::ranges::any_of(edits, &RemedyEdit::changes_run); });
    for (size_t i = 0; i < count; ++i) {
      candidates.push_back(candidate(all[i]));
      FixTrial& one = tried.emplace_back();
      one.edits = all[i];
    }
    if (together) {
      try {
        const std::vector<Trial> trials = runs_.run(candidates);
        for (size_t i = 0; i < count; ++i) {
          tried[i].trial = trials[i];
          tried[i].scene = scene_;
        }
        return tried;
      } catch (const InputError&) {  // one of them; which, shows below
      }
    }
    for (size_t i = 0; i < count; ++i) {
      try {
        tried[i].trial = runs_.run(std::span(&candidates[i], 1), options_with(all[i])).front();
        tried[i].scene = read_scene();
      } catch (const InputError& error) {
        tried[i].refused = join(error.lines(), "; ");
      }
    }
    return tried;
  }

  // `layer`: of the target. `standing`: findings before the edit.
  static void judge(FixTrial& one, FindingKind target, const std::string& layer, int round,
                    const std::set<std::string>& standing) {
    one.round = round;
    if (!one.refused.empty()) return;
    const std::set<std::string> left = layers_with(target, one.trial, *one.scene);
    one.gone = !left.contains(layer);
    const bool moved = !std::ranges::includes(standing, left);
    const bool sound = one.gone && !moved && std::ranges::none_of(one.trial.findings, is_grave);
    one.grade = sound ? grade_of_loss(one.trial) : FixGrade::kNo;
  }

  // Trials of the free run, accepted so far, in synced mode. Not counted in the budget.
  void check_every_step(std::span<FixTrial> tried) {
    for (FixTrial& one : tried) {
      if (one.grade == FixGrade::kNo || !is_judged_at_every_step(one.trial)) continue;
      RunOptions options = options_with(one.edits);
      options.mode = LaneMode::kSynced;
      one.every_step = runs_.run(std::vector{candidate(one.edits)}, options).front().equal;
      if (is_refuted(one.trial, one.every_step)) one.grade = FixGrade::kNo;
    }
  }

  // The edits of a finding's remedies, each after those of earlier rounds.
  std::vector<Choice> choices_for(const Finding& target) {
    FixRound round{target, sentence(target), layer_of_finding(scene_->sites, target), {}};
    const Policy policy = parse_policy(policy_text(edits_), "the policy");
    const RunOptions options = options_with(edits_);
    const FindingContext found = context(target);
    const EditContext edit_context{found, policy, scene_->step, options};
    std::vector<Choice> all;
    int number = 0;
    for (const Remedy& remedy : row_of(target.kind).remedies(found)) {
      const std::vector<RemedyEdit> made =
          remedy.edits == nullptr ? std::vector<RemedyEdit>() : remedy.edits(edit_context);
      if (made.empty() && remedy.told) round.untested.push_back(remedy.words);
      for (const RemedyEdit& edit : made) {
        Choice choice{edits_, number, remedy.told};
        choice.edits.push_back(edit);
        if (known_.insert(identity(choice.edits)).second) all.push_back(std::move(choice));
      }
      ++number;
    }
    fix_.rounds.push_back(std::move(round));
    return all;
  }

  static std::string identity(const std::vector<RemedyEdit>& edits) {
    std::string text;
    for (const RemedyEdit& edit : edits) text += edit.words + "\n" + edit.toml + "\n";
    return text;
  }

  static bool has(const FixTrial& one, FindingKind kind, const std::string& layer) {
    return one.refused.empty() && layers_with(kind, one.trial, *one.scene).contains(layer);
  }

  // What the remedies of one finding have led to.
  struct Outcome {
    int answer = -1, within_noise = -1;  // places in `tried`
    std::optional<FixTrial> best;        // of those that lead further
    std::set<int> begun;                 // remedies with an edit that ran
  };

  const FixTrial& tried(int place) const { return fix_.tried[static_cast<size_t>(place)]; }

  // Whether an edit within the tolerance replaces the answer so far. A wider one does only for a
  // lane that was wrong at equal weights.
  bool is_better(const FixTrial& one, int answer) const {
    if (answer < 0) return true;
    return fix_.before.equal.is_wrong() && !one.edits.back().changes_run() &&
           is_closer(one.trial, tried(answer).trial);
  }

  // Runs the next few choices: as many as share a replay. Changes of the run have their own.
  void run_part(std::vector<Choice>& waiting, FindingKind target, Outcome& outcome) {
    const auto round = static_cast<int>(fix_.rounds.size()) - 1;
    const std::set<std::string> standing = layers_with(target, now_, *scene_);
    const Finding& gravest = now_.findings.front();
    std::vector<std::vector<RemedyEdit>> part;
    const bool alone = waiting.front().edits.back().changes_run();
    do {
      outcome.begun.insert(waiting.front().remedy);
      part.push_back(std::move(waiting.front().edits));
      waiting.erase(waiting.begin());
    } while (!alone && !waiting.empty() && part.size() < kLanesPerReplay &&
             !waiting.front().edits.back().changes_run());
    std::vector<FixTrial> ran = try_all(part);
    for (FixTrial& one : ran) {
      judge(one, target, fix_.rounds.back().layer, round, standing);
      // If the target is not the gravest finding, the gravest must be gone as well.
      if (has(one, gravest.kind, layer_of_finding(scene_->sites, gravest))) {
        one.grade = FixGrade::kNo;
      }
    }
    check_every_step(ran);
    for (FixTrial& one : ran) {
      const auto place = static_cast<int>(fix_.tried.size());
      if (one.grade == FixGrade::kTolerance && is_better(one, outcome.answer)) {
        outcome.answer = place;
      }
      if (outcome.within_noise < 0 && one.grade == FixGrade::kNoise) outcome.within_noise = place;
      if (is_progress(one) && (!outcome.best || rank(one) < rank(*outcome.best))) {
        outcome.best = one;
      }
      fix_.tried.push_back(std::move(one));
    }
  }

  // Runs the remedies of one finding until one is within the tolerance, then the first edit of each
  // other remedy that a report suggests. If none is, the first within the noise answers.
  Outcome try_remedies(const Finding& target) {
    std::vector<Choice> waiting = choices_for(target);
    Outcome outcome;
    while (outcome.answer < 0 && !waiting.empty() && budget_.any()) {
      run_part(waiting, target.kind, outcome);
    }
    if (outcome.answer < 0 && !waiting.empty()) fix_.out_of_budget = true;
    std::set<int> begun = outcome.begun;
    std::erase_if(waiting, [&](const Choice& choice) {
      return !choice.told || !begun.insert(choice.remedy).second;
    });
    while (!waiting.empty() && budget_.any()) run_part(waiting, target.kind, outcome);
    const bool is_noise_closer =
        outcome.within_noise >= 0 && outcome.answer >= 0 &&
        is_closer(tried(outcome.within_noise).trial, tried(outcome.answer).trial);
    if (outcome.answer < 0 || is_noise_closer) outcome.answer = outcome.within_noise;
    return outcome;
  }

  // The edit that answers; else the one to continue from.
  std::optional<FixTrial> one_round() {
    const std::vector<Finding> findings = now_.findings;
    for (size_t f = 0; f < std::min(findings.size(), kFindingsToFollow); ++f) {
      const Outcome outcome = try_remedies(findings[f]);
      if (outcome.answer >= 0) {
        fix_.chosen = outcome.answer;
        return fix_.fix();
      }
      if (outcome.best) return outcome.best;
    }
    return std::nullopt;
  }

  // Less is better: what still breaks, then the loss, then the number of findings.
  static std::tuple<bool, double, size_t> rank(const FixTrial& one) {
    const double gap = one.trial.judgement.gap;
    return {std::ranges::any_of(one.trial.findings, is_grave),
            std::isfinite(gap) ? std::max(gap, tolerance_of(one.trial))
                               : std::numeric_limits<double>::infinity(),
            one.trial.findings.size()};
  }
  // The finding is gone and another one shows what to try next.
  static bool is_progress(const FixTrial& one) {
    return one.grade == FixGrade::kNo && one.gone && !one.trial.findings.empty();
  }

  // Takes edits of earlier rounds out, one after the other, where the rest suffices.
  void make_smaller() {
    for (size_t i = 0; edits_.size() > 1 && i + 1 < edits_.size() && budget_.any();) {
      std::vector<RemedyEdit> fewer = edits_;
      fewer.erase(fewer.begin() + static_cast<int64_t>(i));
      if (!known_.insert(identity(fewer)).second) {
        ++i;
        continue;
      }
      std::vector<FixTrial> tried = try_all({fewer});
      if (tried.empty()) return;
      FixTrial& one = tried.front();
      const FixRound& first = fix_.rounds.front();
      judge(one, first.target.kind, first.layer, static_cast<int>(fix_.rounds.size()) - 1,
            layers_with(first.target.kind, fix_.before, *first_scene_));
      check_every_step(tried);
      const bool is_as_good = one.grade >= fix_.tried[static_cast<size_t>(fix_.chosen)].grade;
      fix_.tried.push_back(std::move(one));
      if (is_as_good) {
        fix_.chosen = static_cast<int>(fix_.tried.size()) - 1;
        edits_ = fewer;
      } else {
        ++i;
      }
    }
  }

  TrialRuns& runs_;
  const FixLane& lane_;
  RemainingBudget budget_;
  int number_ = 0;
  std::shared_ptr<const FixScene> scene_, first_scene_;  // of now_, of the lane as it is
  std::vector<RemedyEdit> edits_;                        // of the rounds so far
  Trial now_;                                            // with them
  std::set<std::string> known_;                          // identities of what has been tried
  Fix fix_;
};

}  // namespace

double tolerance_of(const Trial& trial) {
  return std::max(tolerated_fall(trial), trial.judgement.chaos);
}

FixGrade grade_of_loss(const Trial& trial) {
  const LaneJudgement& judged = trial.judgement;
  const bool trains = judged.verdict != Verdict::kBroke && judged.verdict != Verdict::kStalled &&
                      std::isfinite(judged.tail_loss);
  if (!trains || !trial.skips_are_rare() || trial.equal.is_wrong() || trial.equal.not_finite >= 0) {
    return FixGrade::kNo;
  }
  if (judged.gap <= tolerance_of(trial)) return FixGrade::kTolerance;
  const bool in_noise = judged.verdict == Verdict::kFine ||
                        (judged.verdict == Verdict::kTooShort && judged.gap <= judged.batch_noise);
  return in_noise ? FixGrade::kNoise : FixGrade::kNo;
}

bool is_judged_at_every_step(const Trial& trial) {
  return std::fabs(trial.judgement.gap) > tolerated_fall(trial);
}

bool has_wrong_gradients(const Trial& trial, const EqualStep& worst) {
  const LaneJudgement& judged = trial.judgement;
  const double of_fp32 = std::fabs(judged.tail_loss - judged.gap);
  return worst.gradient_error > kWrongGradient && judged.gap > kLeastShare * of_fp32;
}

bool is_refuted(const Trial& trial, const EqualStep& worst) {
  if (worst.not_finite >= 0 || has_wrong_gradients(trial, worst)) return true;
  return worst.has_wrong_loss && std::fabs(worst.loss - worst.of_reference) > tolerated_fall(trial);
}

Fix find_fix(TrialRuns& runs, const FixLane& lane, const SearchBudget& budget) {
  return Fixer(runs, lane, budget).run();
}

}  // namespace lockstep
