// The first screen: for each lane, worst first, at most three lines: outcome, step, place, cause
// and what to try.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "analysis/findings/finding_kinds.h"
#include "reports/number_text.h"
#include "reports/section.h"
#include "reports/text_writer.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr int kLinesPerLane = 3;
// A replay of fewer captured steps ends within the first steps of a training: from here on the tail
// that decides an outcome is a tenth of the run.
constexpr int64_t kFewSteps = kTailSteps * kTailDivisor;

// 0: named first.
int rank(Verdict verdict) {
  constexpr Verdict kOrder[] = {Verdict::kBroke,   Verdict::kStalled,  Verdict::kWorse,
                                Verdict::kUnclear, Verdict::kTooShort, Verdict::kUnjudged,
                                Verdict::kFine,    Verdict::kReference};
  return static_cast<int>(std::ranges::find(kOrder, verdict) - kOrder);
}

// The finding to name first. Of a lane that broke, the list explains it only if a finding of a kind
// that breaks is in it; the origin leads the list even if it is of another kind.
const Finding* main_finding(const LaneReport& lane) {
  if (lane.findings.empty()) return nullptr;
  const bool explains =
      lane.judgement.verdict != Verdict::kBroke ||
      std::ranges::any_of(lane.findings, [](const Finding& f) { return row_of(f.kind).breaks; });
  return explains ? &lane.findings.front() : nullptr;
}

int64_t break_step(const LaneReport& lane, const Finding* finding) {
  if (finding != nullptr && finding->kind == FindingKind::kScaleFloor) return finding->last_step;
  if (finding != nullptr) return finding->first_step;
  return lane.nonfinite_loss_at >= 0 ? lane.nonfinite_loss_at : lane.info.died_at;
}

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

std::string outcome_text(const LaneReport& lane, const Finding* finding) {
  const LaneJudgement& j = lane.judgement;
  switch (j.verdict) {
    case Verdict::kBroke: {
      const bool several = j.seeds > 1;
      std::string text = fmt::format("{} broke", lane.info.name);
      if (several) text += fmt::format(" in {} of {} seeds", j.broke_in, j.seeds);
      const int64_t step = break_step(lane, finding);
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
      return lane.info.name + ", not judged" + skips_text(lane, finding);
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
  const bool names_place = context.finding.site >= 0 && !is_storage(context.site()) &&
                           text.starts_with(place_text(context.site()));
  if (!names_place && !text.empty()) text[0] = static_cast<char>(std::toupper(text[0]));
  return text;
}

std::string sentence_with(const Report& report, const LaneReport& lane, const Finding* finding,
                          size_t remedies, bool with_follows) {
  const Verdict verdict = lane.judgement.verdict;
  std::string text = outcome_text(lane, finding);
  if (finding == nullptr) {
    if (verdict == Verdict::kBroke)
      return text + ". Its loss or weights are not finite; no single cause was found.";
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
  candidates.resize(std::min(candidates.size(), remedies));
  if (!candidates.empty()) text += " Try (untested): " + join(candidates, "; ") + ".";
  return text;
}

// What fits into the lines; the cause always stays.
std::string lane_text(const Report& report, const LaneReport& lane) {
  const Finding* finding = main_finding(lane);
  const auto fits = [](const std::string& text) {
    return std::ranges::count(wrap(text, kTextWidth), '\n') <= kLinesPerLane;
  };
  for (const auto& [remedies, follows] :
       {std::pair<size_t, bool>{3, true}, {1, true}, {1, false}}) {
    const std::string text = sentence_with(report, lane, finding, remedies, follows);
    if (fits(text)) return text;
  }
  return sentence_with(report, lane, finding, 0, false);
}

Tone tone_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kBroke:
    case Verdict::kStalled:
    case Verdict::kWorse:
      return Tone::kBad;
    case Verdict::kUnclear:
      return Tone::kDoubtful;
    case Verdict::kFine:
      return Tone::kGood;
    default:
      return Tone::kPlain;
  }
}

// The lane and its outcome, "half broke at step 0", have a tone.
Block lane_paragraph(const Report& report, const LaneReport& lane) {
  std::string text = lane_text(report, lane);
  const size_t end = text.find_first_of(".:", lane.info.name.size());
  return paragraph(std::move(text), tone_of(lane.judgement.verdict),
                   end == std::string::npos ? 0 : end);
}

bool is_short_capture(const Report& report) {
  return report.captured >= 0 && report.steps < kFewSteps;
}

std::string short_capture_text(const Report& report) {
  return fmt::format(
      "{} {} overflow, underflow and lost updates, not whether training converges: record more "
      "steps, or repeat them with `lockstep replay --cycle`.",
      counted(static_cast<uint64_t>(report.steps), "recorded step"),
      report.steps == 1 ? "shows" : "show");
}

std::string why_unjudged(const Report& report) {
  if (report.options.mode == LaneMode::kSynced) {
    return "Outcomes are not judged: in synced mode every lane starts each step from the "
           "reference's weights.";
  }
  if (!std::isfinite(report.reference().judgement.tail_loss)) {
    return "Outcomes are not judged: the reference's own loss is not finite.";
  }
  if (is_short_capture(report)) return "";  // said by short_capture_text
  return "Outcomes are not judged: the reference's loss fell by no more than its batch noise.";
}

// What the outcomes rest on, and what they do not prove.
std::string seeds_text(const Report& report) {
  std::string text = fmt::format(
      "Outcomes rest on {} seeds ({} to {}): mean gaps to the reference of the same seed. A lane "
      "that is no worse is called worse by its loss in {:.0f} of 100 cases at most.",
      report.seeds.size(), report.seeds.front(), report.seeds.back(), 100 * kErrorRate);
  for (const uint64_t seed : report.unfinished_seeds) {
    text += fmt::format(" Seed {} is unfinished and left out.", seed);
  }
  return text;
}

// "Estimated on h100: torch-autocast-fp16 takes 0.52 of fp32's time and 0.61 of its memory." Of the
// lanes that train as the reference does.
std::string savings_text(const Report& report) {
  const auto memory_of = [](const LaneCost& cost) {
    return cost.memory ? static_cast<double>(total_bytes(*cost.memory)) : 0;
  };
  std::vector<std::string> lanes;
  for (const LaneCost& cost : report.costs.lanes) {
    const LaneReport& lane = report.lanes[static_cast<size_t>(cost.lane)];
    if (lane.judgement.verdict != Verdict::kFine) continue;
    std::string text = fmt::format("{} takes {:.2f} of {}'s time", lane.info.name,
                                   cost.relative_time, report.reference().info.name);
    const double whole = memory_of(report.costs.lanes.front()), own = memory_of(cost);
    if (whole > 0 && own > 0) text += fmt::format(" and {:.2f} of its memory", own / whole);
    lanes.push_back(std::move(text));
  }
  if (lanes.empty()) return "";
  return fmt::format("Estimated on {}: {}.", report.costs.gpu, join(lanes, "; "));
}

constexpr std::string_view kDoNotTrust = "Do not trust these results";

Blocks write_verdict(const Report& report) {
  Blocks out;
  if (report.verification && !report.verification->passed) {
    out.push_back(
        paragraph(fmt::format("{}: the replay does not do what the model does.", kDoNotTrust),
                  Tone::kBad, kDoNotTrust.size()));
  }
  std::vector<const LaneReport*> lanes;
  for (const LaneReport& lane : report.lanes) {
    const bool broke = lane.judgement.verdict == Verdict::kBroke;
    if (lane.is_candidate() || broke) lanes.push_back(&lane);
  }
  std::ranges::stable_sort(lanes, {},
                           [](const LaneReport* lane) { return rank(lane->judgement.verdict); });
  for (const LaneReport* lane : lanes) out.push_back(lane_paragraph(report, *lane));
  if (lanes.empty()) out.push_back(paragraph("Only the reference was run; name lanes in --lanes."));
  const auto unjudged = [](const LaneReport* lane) {
    return lane->judgement.verdict == Verdict::kTooShort ||
           lane->judgement.verdict == Verdict::kUnjudged;
  };
  if (is_short_capture(report)) out.push_back(paragraph(short_capture_text(report)));
  if (std::ranges::any_of(lanes, unjudged)) {
    const std::string why = why_unjudged(report);
    if (!why.empty()) out.push_back(paragraph(why));
  } else if (report.twins.empty() && !report.has_several_seeds()) {
    out.push_back(
        paragraph("No twin lane was run, so what one ulp does is not known and no lane "
                  "can be called worse: replay with --twins 1 or more, or several --seeds."));
  } else if (report.has_several_seeds()) {
    out.push_back(paragraph(seeds_text(report)));
  } else if (!lanes.empty()) {
    out.push_back(
        paragraph("One seed rules out a large regression; it does not prove equality (--seeds N "
                  "runs more)."));
  }
  const std::string savings = savings_text(report);
  if (!savings.empty()) out.push_back(paragraph(savings));
  return out;
}

}  // namespace

Section verdict_section() {
  constexpr bool kLeads = true;
  return {"verdict", "Verdict", true, write_verdict, kLeads};
}

}  // namespace lockstep
