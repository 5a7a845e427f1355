// Outcome, distance, skips, cause, remedies: what fits into the lines; the cause always stays.
#include "reports/words/lane_sentence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>
#include <vector>

#include "analysis/findings/finding_kinds.h"
#include "analysis/report/main_finding.h"
#include "reports/words/tried_text.h"
#include "reports/writers/number_text.h"
#include "reports/writers/text_writer.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

// Breaks of lines; kMostLines where the sentence also says what was tried.
constexpr int kLinesPerLane = 3, kMostLines = 4;

// "loss 1.51, 0.31 above the reference's (noise 0.05); 1.20 points fewer held-out answers right"
std::string distance_text(const LaneJudgement& j) {
  const double likely = std::max(j.batch_noise, j.chaos);
  const bool several = j.seeds > 1 && std::isfinite(j.seed_bound);
  const double bound = several ? std::max(j.seed_bound, likely) : likely;
  std::string text =
      fmt::format("loss {}, {} {} the reference's (noise {}", short_number(j.tail_loss),
                  two_digits(std::fabs(j.gap)), j.gap < 0 ? "below" : "above", two_digits(bound));
  const bool is_wide = std::isfinite(j.chaos_bound) && j.chaos_bound > 2 * bound;
  if (j.verdict == Verdict::kUnclear && is_wide) {
    text += fmt::format(", perhaps up to {}", two_digits(j.chaos_bound));
  }
  text += several ? fmt::format(", {} seeds)", j.seeds) : ")";
  if (j.answers == 0) return text;
  if (j.correct_drop == 0) return text + "; as many held-out answers right";
  const auto points = [&](double answers) {
    constexpr double kPercent = 100;
    return kPercent * answers / static_cast<double>(j.answers);
  };
  double noise = std::max(j.correct_noise, j.correct_chaos);
  if (several) noise = std::max(noise, j.correct_seed_bound);
  return text + fmt::format("; {:.2f} points {} held-out answers right (noise {})",
                            points(std::fabs(j.correct_drop)),
                            j.correct_drop > 0 ? "fewer" : "more", two_digits(points(noise)));
}

// The finding's sentence counts the skipped steps.
bool tells_skips(const Finding* finding) {
  return finding != nullptr && (finding->kind == FindingKind::kScaleCollapse ||
                                finding->kind == FindingKind::kScaleFloor);
}

// The scale before the first skipped step and after the last one: " (loss scale 2^16 to 2^13)".
std::string fall_text(const LaneReport& lane) {
  if (lane.scalers.size() != 1 || lane.scalers[0].overflows.empty()) return "";
  const std::vector<SkipEvent>& events = lane.scalers[0].overflows;
  const double first = events.front().scale, last = events.back().scale_after;
  if (first == last || !std::isfinite(last)) {
    return fmt::format(" (loss scale {})", scale_text(first));
  }
  return fmt::format(" (loss scale {} to {})", scale_text(first), scale_text(last));
}

// "; steps 0 and 1 skipped (loss scale 2^16 to 2^14)"; many skips are counted. Of one seed only,
// and if the finding does not say it.
std::string skips_text(const LaneReport& lane, const Finding* finding) {
  constexpr size_t kMostNamed = 3;
  const std::vector<int64_t>& skips = lane.skips;
  if (skips.empty() || lane.judgement.seeds > 1 || tells_skips(finding)) return "";
  const auto count = static_cast<int64_t>(skips.size());
  if (skips.size() == lane.loss.size()) return fmt::format("; all {} steps skipped", count);
  if (skips.size() > kMostNamed) {
    const bool probes = skips.back() == count - 1;  // from the first step on
    return (probes ? fmt::format("; steps 0 to {} skipped until the loss scale fitted", count - 1)
                   : fmt::format("; {} of {} steps skipped", count, lane.loss.size())) +
           fall_text(lane);
  }
  std::string text = skips.size() == 1 ? "; step " : "; steps ";
  for (size_t i = 0; i < skips.size(); ++i) {
    const bool is_last = i + 1 == skips.size();
    text += fmt::format("{}{}", i == 0 ? "" : is_last ? " and " : ", ", skips[i]);
  }
  return text + " skipped" + fall_text(lane);
}

// "; about 5 seeds would decide"
std::string deciding_text(const LaneJudgement& j) {
  if (j.verdict != Verdict::kUnclear || j.seeds_to_decide == 0) return "";
  if (j.seeds_to_decide > kMostDecidingSeeds) {
    return fmt::format("; more than {} seeds would be needed to decide", kMostDecidingSeeds);
  }
  return fmt::format("; about {} seeds would decide", j.seeds_to_decide);
}

// "tf32 agrees with fp32 at equal weights (loss within 0.02%)": what one step shows of a lane whose
// training is not judged.
std::string standing_text(const LaneReport& lane, const Finding* finding) {
  const EqualStep& equal = lane.equal;
  if (equal.step < 0) return lane.info.name + ", not judged";
  if (equal.is_wrong()) return lane.info.name + " is wrong at equal weights";
  const bool tells_more = !lane.skips.empty() && !tells_skips(finding);
  if (finding != nullptr && tells_more) return lane.info.name;
  const std::string text = lane.info.name + " agrees with fp32 at equal weights";
  if (finding != nullptr) return text;
  if (equal.loss == equal.of_reference) return text + " (the same loss)";
  if (!(equal.error() < 1)) {  // the scatter of batches is larger than the loss
    return text + fmt::format(" (loss {:.3g}, fp32 {:.3g})", equal.loss, equal.of_reference);
  }
  return text + " (loss within " + share_text(equal.error()) + ")";
}

// "+0.0035 +- 0.0004"; the error of the mean over the batches, if there are several.
std::string effect_text(double effect, double spread) {
  std::string text = fmt::format("{:+.2g}", effect);
  if (!std::isnan(spread)) text += fmt::format(" +- {:.1g}", spread);
  return text;
}

// "nvfp4 changes output by 19% and the model's loss by +0.0035, 81% of it in blocks.3.down": of
// parts, whose loss is the inner product of their outputs with their gradients.
std::string part_text(const LaneReport& lane) {
  double effect = 0, variance = 0, magnitudes = 0;
  const PartEffect* worst = nullptr;
  for (const PartEffect& part : lane.parts) {
    if (part.nonfinite > 0) {
      return fmt::format("{} breaks {}: its output or gradient is not finite in {} of {} batches",
                         lane.info.name, part.name, part.nonfinite, part.batches);
    }
    const bool counts = part.batches > 0 && (!part.is_alone() || lane.parts.size() == 1);
    if (!counts) continue;
    effect += part.effect();
    variance += part.spread * part.spread;
    magnitudes += std::abs(part.effect());
    if (worst == nullptr || std::abs(part.effect()) > std::abs(worst->effect())) worst = &part;
  }
  if (worst == nullptr) return lane.info.name + ", not judged";
  std::string outputs, where;
  if (lane.parts.size() == 1) {
    outputs = fmt::format("its output by {} and ", share_text(worst->output_error));
    if (!worst->layer.empty()) {
      where = fmt::format(", {} of it in {}", share_text(worst->layer_share), worst->layer);
    }
  } else if (magnitudes > 0) {
    where = fmt::format(", {} of it in {}", share_text(std::abs(worst->effect()) / magnitudes),
                        worst->name);
  }
  return fmt::format("{} changes {}the model's loss by {}{}", lane.info.name,
                     std::isnan(worst->output_error) ? "" : outputs,
                     effect_text(effect, std::sqrt(variance)), where);
}

std::string outcome_text(const Report& report, const LaneReport& lane, const Finding* finding) {
  const LaneJudgement& j = lane.judgement;
  switch (j.verdict) {
    case Verdict::kBroke: {
      const auto is_broken = [](const PartEffect& part) { return part.nonfinite > 0; };
      if (std::ranges::any_of(lane.parts, is_broken)) return part_text(lane);
      const bool several = j.seeds > 1;
      std::string text = fmt::format("{} broke", lane.info.name);
      if (several) text += fmt::format(" in {} of {} seeds", j.broke_in, j.seeds);
      const int64_t step = lane_break_step(lane);
      if (step >= 0) text += fmt::format("{} at step {}", several ? "," : "", step);
      if (several)
        text += fmt::format("{} seed {}", step >= 0 ? " of" : ", shown:", lane.findings_seed);
      if (!several && lane.skips.size() == lane.loss.size()) {
        text += fmt::format(", all {} steps skipped", lane.skips.size());
      }
      return text;
    }
    case Verdict::kTooShort:
    case Verdict::kUnjudged:
      if (lane.skips.size() == lane.loss.size() && !tells_skips(finding)) {
        return fmt::format("{} took no step: all {} were skipped", lane.info.name,
                           lane.skips.size());
      }
      if (!report.options.part.empty()) return part_text(lane);
      return standing_text(lane, finding) + skips_text(lane, finding);
    default:
      return fmt::format("{} is {}{}: {}{}{}", lane.info.name, to_string(j.verdict),
                         j.verdict == Verdict::kStalled && j.seeds > 1
                             ? fmt::format(" in {} of {} seeds", j.stalled_in, j.seeds)
                             : "",
                         distance_text(j), deciding_text(j), skips_text(lane, finding));
  }
}

// With a capital, unless it begins with the name of a module or parameter.
std::string as_sentence(const FindingContext& context, std::string text) {
  const bool names_place =
      context.finding.site >= 0 && !is_storage(context.site()) &&
      (context.finding.kind == FindingKind::kFlippedDecisions ||  // begins with PyTorch's op
       text.starts_with(place_text(context.site())));
  if (!names_place && !text.empty()) text[0] = static_cast<char>(std::toupper(text[0]));
  return text;
}

// A lane that broke without a finding. PyTorch's own run has no statistics: the lane that does what
// PyTorch did has them.
std::string unexplained_text(const Report& report, const LaneReport& lane) {
  const int64_t step = lane_break_step(lane);
  const bool shares_fault = !lane.info.is_reference &&
                            main_finding(report.reference()) != nullptr &&
                            (step < 0 || lane_break_step(report.reference()) <= step);
  if (shares_fault) return "So does fp32: the format is not the cause.";
  if (!lane.is_captured()) return "Its loss or weights are not finite; no single cause was found.";
  const auto explains = [](const LaneReport& o) {
    const Finding* finding = o.is_candidate() ? main_finding(o) : nullptr;
    return finding != nullptr && row_of(finding->kind).breaks;
  };
  const auto same = std::ranges::find_if(report.lanes, [&](const LaneReport& o) {
    return o.beside_captured && o.beside_captured->losses && explains(o);
  });
  const auto other = std::ranges::find_if(report.lanes, explains);
  const std::string text = "This is PyTorch's own run, whose sites were not measured";
  if (same != report.lanes.end()) {
    return fmt::format("{}: {}, which does the same, shows the cause.", text, same->info.name);
  }
  if (other != report.lanes.end()) {
    return fmt::format("{}: {} may show the cause.", text, other->info.name);
  }
  return text + ": replay its policy as a lane (`lockstep list presets`).";
}

// " Also: " and the sentence of the next finding of another kind at another place; short: its kind
// and place.
std::string also_text(const Report& report, const LaneReport& lane, const Finding* finding,
                      bool is_short) {
  if (finding == nullptr) return "";
  const auto layer_of = [&](const Finding& f) {
    return f.site < 0 ? std::string() : report.site(f.site).layer;
  };
  const auto other = std::ranges::find_if(lane.findings, [&](const Finding& f) {
    return f.site >= 0 && f.kind != finding->kind && layer_of(f) != layer_of(*finding);
  });
  if (other == lane.findings.end()) return "";
  const FindingKindRow& row = row_of(other->kind);
  return fmt::format(" Also: {}.", is_short ? fmt::format("{} at {}", row.name,
                                                          place_text(report.site(other->site)))
                                            : row.sentence(context_of(report, lane, *other)));
}

std::string sentence_with(const Report& report, const LaneReport& lane, const Finding* finding,
                          size_t remedies, bool with_follows) {
  const Verdict verdict = lane.judgement.verdict;
  std::string text = outcome_text(report, lane, finding);
  if (finding == nullptr) {
    if (verdict == Verdict::kBroke) return text + ". " + unexplained_text(report, lane);
    const bool silent = verdict == Verdict::kTooShort || verdict == Verdict::kUnjudged;
    return text + (silent ? "; no finding." : ".");
  }
  const FindingKindRow& row = row_of(finding->kind);
  const FindingContext context = context_of(report, lane, *finding);
  const bool leads =
      verdict == Verdict::kBroke || verdict == Verdict::kTooShort || verdict == Verdict::kUnjudged;
  text += (leads                          ? ". "
           : verdict == Verdict::kFine    ? ". Still, "
           : verdict == Verdict::kUnclear ? ". Possible cause: "
                                          : ". Likely cause: ") +
          (leads ? as_sentence(context, row.sentence(context)) : row.sentence(context)) + ".";
  const std::string follows = with_follows ? row.follows(context) : "";
  if (!follows.empty()) text += " " + follows + ".";
  std::vector<std::string> candidates = remedy_words(context);
  const std::string tried = lane.tried == nullptr ? "" : tried_text(*lane.tried);
  bool untested_first = true;
  if (!tried.empty()) {
    std::vector<std::string> untested = untested_remedies(*lane.tried);
    untested_first = !untested.empty() && !candidates.empty() &&
                     untested.front() == candidates.front();  // the first of the list
    candidates = std::move(untested);
  }
  candidates.resize(std::min(candidates.size(), remedies));
  const std::string untested =
      candidates.empty() ? "" : "Try (untested): " + join(candidates, "; ") + ".";
  for (const std::string& more :
       {untested_first ? untested : tried, untested_first ? tried : untested}) {
    if (!more.empty()) text += " " + more;
  }
  return text;
}

}  // namespace

std::string lane_sentence(const Report& report, const LaneReport& lane) {
  const Finding* finding = main_finding(lane);
  const auto fits = [&](const std::string& text) {
    return std::ranges::count(wrap(text, kTextWidth), '\n') <=
           (lane.tried == nullptr ? kLinesPerLane : kMostLines);
  };
  const bool has_tried = lane.tried != nullptr && !tried_text(*lane.tried).empty();
  for (const auto& [remedies, follows] :
       {std::pair<size_t, bool>{3, true}, {1, true}, {0, true}, {1, false}}) {
    if (remedies == 0 && !has_tried) continue;  // what follows is worth less than the only remedy
    const std::string text = sentence_with(report, lane, finding, remedies, follows);
    for (const bool is_short : {false, true}) {
      const std::string more = text + also_text(report, lane, finding, is_short);
      if (fits(more)) return more;
    }
    if (fits(text)) return text;
  }
  return sentence_with(report, lane, finding, 0, false);
}

}  // namespace lockstep
