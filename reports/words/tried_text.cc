// See tried_text.h.
#include "reports/words/tried_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/findings/finding_kinds.h"
#include "reports/writers/number_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

std::string gap_text(const EqualStep& equal) {
  if (equal.step < 0 || !std::isfinite(equal.loss)) return "not finite";
  const double error = equal.error();
  return std::isfinite(error) ? two_digits(100 * error) + "%"
                              : two_digits(std::fabs(equal.loss - equal.of_reference));
}

// "gap at equal weights 61% -> 0.01%, loss 1.5, fp32 1.5"
std::string numbers(const Trial& before, const Trial& after) {
  const LaneJudgement& judged = after.judgement;
  const std::string losses = fmt::format("loss {}, fp32 {}", short_number(judged.tail_loss),
                                         short_number(judged.tail_loss - judged.gap));
  if (after.equal.step < 0) return losses;
  return fmt::format("gap at equal weights {} -> {}, {}", gap_text(before.equal),
                     gap_text(after.equal), losses);
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
  return fmt::format("Tried: {} {}: {}.", edits_text(one->edits),
                     is_fixed ? one->edits.size() == 1 ? "removes the fault" : "remove the fault"
                              : "removes this fault, but not all of the difference",
                     numbers(fix.before, one->trial));
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
