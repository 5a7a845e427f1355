// The first screen: for each lane, worst first, its sentence; what the outcomes rest on.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <tuple>
#include <utility>

#include "analysis/findings/finding_kinds.h"
#include "analysis/report/main_finding.h"
#include "reports/run/section.h"
#include "reports/words/lane_sentence.h"
#include "reports/words/outcome_words.h"
#include "reports/words/range_text.h"
#include "reports/writers/number_text.h"
#include "reports/writers/text_writer.h"
#include "src/core/text.h"
#include "src/train/replay_command.h"
#include "src/train/run_option_syntax.h"

namespace lockstep {
namespace {

// 0: named first.
int rank(Verdict verdict) {
  constexpr Verdict kOrder[] = {Verdict::kBroke,   Verdict::kStalled,  Verdict::kWorse,
                                Verdict::kUnclear, Verdict::kTooShort, Verdict::kUnjudged,
                                Verdict::kFine,    Verdict::kReference};
  return static_cast<int>(std::ranges::find(kOrder, verdict) - kOrder);
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
  std::string text = lane_sentence(report, lane);
  size_t end = text.find_first_of(".:", lane.info.name.size());
  while (end != std::string::npos && end + 1 < text.size() && text[end + 1] != ' ') {
    end = text.find_first_of(".:", end + 1);  // "+0.0035"
  }
  return paragraph(std::move(text), tone_of(lane.judgement.verdict),
                   end == std::string::npos ? 0 : end);
}

std::string short_capture_text(const Report& report) {
  return fmt::format(
      "{} {} overflow, underflow and lost updates, not whether training converges: record {} "
      "steps, or repeat these.",
      counted(static_cast<uint64_t>(report.steps), "recorded step"),
      report.steps == 1 ? "shows" : "show", kJudgedSteps);
}

// A run in which the lanes can be judged; empty: FP32 training itself goes wrong, or a search has
// its own way.
std::string judging_command(const Report& report, WhyUnjudged why) {
  constexpr int64_t kTimesLonger = 4;
  if (why == WhyUnjudged::kPart || why == WhyUnjudged::kReferenceNotFinite ||
      why == WhyUnjudged::kInference || why == WhyUnjudged::kRecordedUpdates ||
      is_of_search(report)) {
    return "";
  }
  const bool is_stopped = report.steps < report.options.steps || !report.unfinished_seeds.empty();
  if (why != WhyUnjudged::kSynced && is_stopped) {
    return "lockstep replay --resume " + shell_path(report.path);
  }
  RunOptions options = report.options;
  if (why == WhyUnjudged::kSynced) options.mode = LaneMode::kFree;
  if (is_short_capture(report)) options.steps = std::max(options.steps, kJudgedSteps);
  if (why == WhyUnjudged::kNotLearned) options.steps *= kTimesLonger;
  const bool repeats = options.cycle || options.steps > report.options.steps;
  options.cycle = !options.capture_hash.empty() && options.captured_order.empty() && repeats;
  if (needs_twin(options)) add_twins(options, 1);
  const std::string name = std::filesystem::path(report.path).stem().string();
  return replay_command(options, name + "-judged.h5");
}

// Why lanes have no outcome, and the run in which they would have one. `has_answer`: `recommend`
// has its own.
void add_why_unjudged(const Report& report, bool is_any_unjudged, bool has_answer, Blocks& out) {
  if (!is_any_unjudged && !is_short_capture(report)) return;
  const WhyUnjudged why = is_any_unjudged ? why_unjudged(report) : WhyUnjudged::kShortCapture;
  const std::string command = has_answer ? "" : judging_command(report, why);
  if (why != WhyUnjudged::kShortCapture) {  // said by short_capture_text
    out.push_back(paragraph(fmt::format("Outcomes are not judged: {}.{}", to_string(why),
                                        command.empty() ? "" : " To have them judged:")));
  }
  if (!command.empty()) out.push_back(verbatim(broken_command(command)));
}

// `lanes`: the worst first.
void add_fix(const Report& report, const std::vector<const LaneReport*>& lanes, Blocks& out) {
  if (!std::isfinite(report.reference().judgement.tail_loss)) return;  // --fix needs FP32's
  const auto lane = std::ranges::find_if(lanes, [&](const LaneReport* l) {
    const Finding* finding = main_finding(*l);
    return finding != nullptr && l->info.target.empty() && l->judgement.verdict != Verdict::kFine &&
           !remedy_words(context_of(report, *l, *finding)).empty();
  });
  if (lane == lanes.end()) return;
  out.push_back(paragraph((*lane)->tried != nullptr
                              ? "To see every change that was tried, with the lines to add:"
                              : "To run what can be tried, and see what of it helps:"));
  out.push_back(
      verbatim(broken_command(fmt::format("lockstep recommend {} --fix {}", shell_path(report.path),
                                          shell_quoted((*lane)->info.name)))));
}

// What the outcomes rest on, and what they do not prove.
std::string seeds_text(const Report& report) {
  std::string text = fmt::format(
      "Outcomes rest on {} seeds ({} to {}): mean gaps to the reference of the same seed. A lane "
      "that is no worse is called worse by its loss in {:.0f} of 100 cases at most.",
      report.seeds.size(), report.seeds.front(), report.seeds.back(), 100 * kErrorRate);
  return text;
}

// Seeds that the file lacks, or has in part.
std::string unfinished_text(const Report& report) {
  std::string text;
  for (const uint64_t seed : report.unfinished_seeds) {
    text += fmt::format("{}Seed {} is unfinished or missing and left out.", text.empty() ? "" : " ",
                        seed);
  }
  return text;
}

// What the outcomes rest on. `is_short`: without the caution about a single seed.
std::string basis_text(const Report& report, bool is_short) {
  if (report.has_several_seeds()) return seeds_text(report);
  if (report.twins.empty()) {
    return "No twin lane was run, so what one ulp does is not known and no lane can be called "
           "worse: replay with --twins 1 or more, or several --seeds.";
  }
  return is_short ? ""
                  : "One seed rules out a large regression; it does not prove equality (--seeds N "
                    "runs more).";
}

// "At best, by roofline on h100: torch-autocast-fp16 takes 0.52 of fp32's time and 0.61 of its
// memory." Of the lanes that train as the reference does.
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
  return fmt::format("At best, by roofline on {}: {}.", report.costs.gpu, join(lanes, "; "));
}

// Whether "all layers may use bf16" would contradict what was found of every lane in the format.
bool is_contradicted(const Report& report, const std::string& format) {
  bool is_blamed = false;
  for (const LaneReport& lane : report.lanes) {
    const bool uses = std::ranges::count(lane.info.site_formats, format) > 0;
    if (!lane.is_candidate() || !uses) continue;
    const Finding* finding = main_finding(lane);
    if (finding == nullptr) return false;
    is_blamed = is_blamed || (!finding->backward && finding->site >= 0 &&
                              is_in_graph(report.site(finding->site)) && finding->format == format);
  }
  return is_blamed;
}

// For every format of 16 bits that a lane has: the layers to keep in FP32, the loss scale to set.
void add_ranges(const Report& report, Blocks& out) {
  for (const RangeTable& ranges : report.ranges) {
    const bool keeps_some = std::ranges::any_of(
        ranges.layers, [](const LayerRange& layer) { return !layer.reason.empty(); });
    if (!keeps_some && is_contradicted(report, ranges.format->name)) continue;
    for (const std::string& text : {kept_layers_sentence(ranges), loss_scale_sentence(ranges)}) {
      if (text.empty()) continue;
      out.push_back(paragraph(text, Tone::kPlain, text.find_first_of(",.")));
    }
  }
}

// Whether a lane went wrong before FP32 did, which went wrong, too: that fault is the lane's own.
bool precedes_reference(const Report& report, const LaneReport& lane) {
  const Finding* finding = main_finding(lane);
  return lane.is_candidate() && finding != nullptr && row_of(finding->kind).breaks &&
         finding->first_step < lane_break_step(report.reference());
}

constexpr std::string_view kDoNotTrust = "Do not trust these results";
constexpr std::string_view kDamagedFile = "The run file is damaged";

Blocks write_verdict(const AdvisedReport& advised) {
  const Report& report = advised.report;
  Blocks out;
  if (!report.damage.empty()) {
    out.push_back(
        paragraph(fmt::format("{}: {}. This report is of the {} before it.", kDamagedFile,
                              report.damage, counted(static_cast<uint64_t>(report.steps), "step")),
                  Tone::kBad, kDamagedFile.size()));
  }
  if (report.verification && !report.verification->passed &&
      !report.verification->is_inconclusive()) {
    out.push_back(
        paragraph(fmt::format("{}: the replay does not do what the model does.", kDoNotTrust),
                  Tone::kBad, kDoNotTrust.size()));
  }
  std::vector<const LaneReport*> lanes;
  for (const LaneReport& lane : report.lanes) {
    // A twin of a reference that broke says nothing more.
    const bool is_told = !lane.is_twin() || main_finding(report.reference()) == nullptr;
    if (has_sentence(lane) && is_told) lanes.push_back(&lane);
  }
  // PyTorch's own run explains nothing: a lane that shows the cause comes first.
  const bool is_explained = std::ranges::any_of(
      lanes, [](const LaneReport* lane) { return main_finding(*lane) != nullptr; });
  std::ranges::stable_sort(lanes, {}, [&](const LaneReport* lane) {
    return std::tuple(is_explained && lane->is_captured(), !precedes_reference(report, *lane),
                      rank(lane->judgement.verdict));
  });
  // The answer of `recommend` is above. It covers the candidate, layers, loss scale, proof and
  // cost, which are not repeated.
  const bool has_answer = !advised.answer.empty();
  for (const LaneReport* lane : lanes) {
    const bool is_told = has_answer && lane->judgement.verdict == Verdict::kFine;
    if (!is_told || main_finding(*lane) != nullptr) out.push_back(lane_paragraph(report, *lane));
  }
  if (lanes.empty()) out.push_back(paragraph("Only the reference was run; name lanes in --lanes."));
  const auto unjudged = [](const LaneReport* lane) {
    return lane->judgement.verdict == Verdict::kTooShort ||
           lane->judgement.verdict == Verdict::kUnjudged;
  };
  if (!has_answer) add_ranges(report, out);
  if (is_short_capture(report)) out.push_back(paragraph(short_capture_text(report)));
  const bool is_any_unjudged = std::ranges::any_of(lanes, unjudged);
  add_why_unjudged(report, is_any_unjudged, has_answer, out);
  const std::string basis =
      is_any_unjudged ? "" : basis_text(report, /*is_short=*/has_answer || lanes.empty());
  if (!basis.empty()) out.push_back(paragraph(basis));
  const std::string unfinished = unfinished_text(report);
  if (!unfinished.empty()) out.push_back(paragraph(unfinished));
  const std::string savings = savings_text(report);
  if (!savings.empty() && !has_answer) out.push_back(paragraph(savings));
  if (!has_answer) add_fix(report, lanes, out);
  return out;
}

}  // namespace

Section verdict_section() {
  return {.name = "verdict",
          .title = "Verdict",
          .in_summary = true,
          .write = write_verdict,
          .leads = true};
}

}  // namespace lockstep
