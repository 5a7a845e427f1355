// See tried_text.h.
#include "reports/words/tried_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/findings/equal_weights.h"
#include "analysis/findings/finding_kinds.h"
#include "reports/writers/number_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

std::string gap_text(const EqualStep& equal) {
  if (equal.step < 0 || equal.not_finite >= 0) return "not finite";
  const double error = equal.error();
  return std::isfinite(error) ? two_digits(100 * error) + "%"
                              : two_digits(std::fabs(equal.loss - equal.of_reference));
}

// "gap at equal weights 61% -> 0.01%, loss 1.5, fp32 1.5"
std::string numbers(const Trial& before, const FixTrial& one) {
  const LaneJudgement& judged = one.trial.judgement;
  const bool has_all = one.every_step.step >= 0;
  const EqualStep& after = has_all ? one.every_step : one.trial.equal;
  const double of_fp32 = judged.tail_loss - judged.gap;
  std::string losses =
      fmt::format("loss {}, fp32 {}", short_number(judged.tail_loss), short_number(of_fp32));
  if (after.step < 0) return losses;
  const bool parts = one.grade != FixGrade::kNo && has_all &&
                     std::fabs(judged.gap) > kLeastShare * std::fabs(of_fp32);
  if (parts) losses += ": the training itself is unstable";
  return fmt::format("gap at equal weights {} -> {}{}, {}", gap_text(before.equal), gap_text(after),
                     parts ? fmt::format(" in the worst of {} steps", one.trial.steps) : "",
                     losses);
}

std::string_view judgement_of(const FixTrial& one, bool is_fixed) {
  if (is_fixed) return one.edits.size() == 1 ? "removes the fault" : "remove the fault";
  const bool is_wrong = one.trial.equal.is_wrong() || one.trial.equal.not_finite >= 0 ||
                        is_refuted(one.trial, one.every_step);
  if (!is_wrong) return "removes this fault, but not all of the difference";
  const EqualStep& equal = one.trial.equal;
  return has_wrong_gradients(one.trial, one.every_step) ||
                 (equal.has_wrong_gradients && !equal.has_wrong_loss)
             ? "removes this fault, but leaves gradients that are wrong"
             : "removes this fault, but leaves a loss that is wrong";
}

// What removes the fault though the loss is not FP32's; null: nothing does.
const FixTrial* least_gap(const Fix& fix) {
  const FixTrial* best = nullptr;
  for (const FixTrial& one : fix.tried) {
    const LaneJudgement& judged = one.trial.judgement;
    const bool ends = std::isfinite(judged.tail_loss) && std::isfinite(judged.gap);
    if (!one.refused.empty() || !one.gone || !ends) continue;
    if (best == nullptr || std::fabs(judged.gap) < std::fabs(best->trial.judgement.gap)) {
      best = &one;
    }
  }
  return best;
}

}  // namespace

std::string edits_text(const std::vector<RemedyEdit>& edits) {
  std::vector<std::string> words;
  for (const RemedyEdit& edit : edits) words.push_back(edit.words);
  return join(words, ", and ");
}

std::string tried_text(const Fix& fix) {
  if (fix.tried.empty()) return "";
  const bool is_fixed = fix.answer == Fix::Answer::kFixed;
  const FixTrial* one = is_fixed ? &fix.fix() : least_gap(fix);
  if (one == nullptr) {
    return fmt::format("Tried: {}, none removes the fault.", counted(fix.tried.size(), "change"));
  }
  return fmt::format("Tried: {} {}: {}.", edits_text(one->edits), judgement_of(*one, is_fixed),
                     numbers(fix.before, *one));
}

std::vector<std::string> untested_remedies(const Fix& fix) {
  std::vector<std::string> words;
  for (const FixRound& round : fix.rounds) {
    for (const std::string& one : round.untested) {
      if (std::ranges::count(words, one) == 0) words.push_back(one);
    }
  }
  return words;
}

}  // namespace lockstep
