// Which lanes trained as well as the reference, and where the others broke first.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "reports/number_text.h"
#include "reports/section.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

std::string place(const Report& report, int32_t site_id) {
  const Site& site = report.site(site_id);
  const std::string layer = site.layer.empty() ? "(no layer)" : site.layer;
  if (site.role == Role::kAccumulator) {
    return fmt::format("layer {}, in the sums of {}", layer, site.op);
  }
  return fmt::format("layer {}, {} ({} {})", layer, to_string(site.role), site.op,
                     to_string(site.point));
}

std::string nonfinite_text(const Report& report, const NonfiniteCause& cause) {
  std::string what = "values were already infinite before rounding";
  if (cause.to_infinity > 0) {
    what = fmt::format("{} of {} values overflowed to infinity", with_thousands(cause.to_infinity),
                       with_thousands(cause.count));
  } else if (cause.nan > 0) {
    what = fmt::format("{} of {} values were NaN", with_thousands(cause.nan),
                       with_thousands(cause.count));
  }
  return fmt::format("First non-finite values: step {}, {}: {}{}.", cause.step,
                     place(report, cause.site), what,
                     cause.feeds_finite ? ", everything feeding it was finite" : "");
}

double points(int64_t part, int64_t answers) {
  return 100 * static_cast<double>(part) / static_cast<double>(answers);
}

// "100 of 10000 held-out answers (1.00 points)"
std::string held_out_margin_text(const LaneJudgement& j) {
  return fmt::format("{} of {} held-out answers ({:.2f} points)", j.correct_margin, j.answers,
                     points(j.correct_margin, j.answers));
}

std::string underflow_text(const Report& report, const LaneReport& lane) {
  return fmt::format(
      "{}: gradients underflow. At {}, {} of the nonzero values become zero over the run; the "
      "worst step is {} with {}. Check the loss to see whether this matters.",
      lane.info.name, place(report, lane.underflow->site), percent(lane.underflow->to_zero_rate),
      lane.underflow->worst_step, percent(lane.underflow->worst_step_rate));
}

std::string names_of(const Report& report, Verdict verdict) {
  std::vector<std::string> names;
  for (const LaneReport& lane : report.lanes) {
    const bool listed = lane.is_candidate() || verdict == Verdict::kBroke;
    if (listed && lane.judgement.verdict == verdict) names.push_back(lane.info.name);
  }
  return join(names, ", ");
}

std::string margin_text(const Report& report) {
  const LaneJudgement& j = report.reference().judgement;
  std::string text =
      fmt::format("loss over the last {} at most {} above the fp32 reference's",
                  counted(tail_of(report.reference().loss).size(), "step"), short_number(j.margin));
  if (j.answers > 0) text += fmt::format(", at most {} fewer correct", held_out_margin_text(j));
  return text;
}

std::string noise_text(const Report& report) {
  if (report.twin < 0) {
    return "No twin lane was run, so the effect of one-ulp noise alone is not known: add `twin` to "
           "--lanes.";
  }
  const LaneReport& twin = report.lanes[static_cast<size_t>(report.twin)];
  return fmt::format(
      "Noise: the twin (fp32, every weight moved by one ulp) ends {} from the reference in loss; a "
      "smaller difference says nothing about a format.",
      short_number(std::fabs(twin.judgement.gap)));
}

void add_broken(const Report& report, const LaneReport& lane, Blocks& out) {
  std::string text = lane.info.name + " broke";
  if (lane.nonfinite_loss_at >= 0) {
    text += fmt::format(": its loss is not finite from step {} on", lane.nonfinite_loss_at);
  }
  if (lane.info.died_at >= 0) text += fmt::format(", it stopped at step {}", lane.info.died_at);
  if (lane.info.died_of == DeathCause::kLossScaler) {
    text += ": its loss scaler stops training when the scale cannot shrink any further";
  }
  text += ". ";
  out.push_back(paragraph(text));
}

// "loss 0.244 above the reference's, give or take 0.1 of batch noise; held out: 12 of 1,000 answers
// (1.20 points) fewer correct, give or take 9.5"
std::string distance_text(const LaneJudgement& j) {
  std::string text = fmt::format("loss {} {} the reference's, give or take {} of batch noise",
                                 short_number(std::fabs(j.gap)), j.gap < 0 ? "below" : "above",
                                 short_number(j.noise));
  if (j.answers > 0) {
    const int64_t apart = std::abs(j.correct_drop);
    text +=
        fmt::format("; held out, {} of {} answers ({:.2f} points) {} correct, give or take {:.1f}",
                    apart, j.answers, points(apart, j.answers),
                    j.correct_drop < 0 ? "more" : "fewer", j.correct_noise);
  }
  return text;
}

Blocks write_verdict(const Report& report) {
  Blocks out;
  std::string lead;
  const std::string fine = names_of(report, Verdict::kFine);
  if (!fine.empty()) lead = fmt::format("Fine: {}. ", fine);
  const std::string worse = names_of(report, Verdict::kWorse);
  if (!worse.empty()) lead += fmt::format("Worse: {}. ", worse);
  const std::string unclear = names_of(report, Verdict::kUnclear);
  if (!unclear.empty()) lead += fmt::format("Unclear, the run is too short to tell: {}. ", unclear);
  const std::string broke = names_of(report, Verdict::kBroke);
  if (!broke.empty()) lead += fmt::format("Broke: {}. ", broke);
  const std::string unjudged = names_of(report, Verdict::kUnjudged);
  if (!unjudged.empty()) {
    const char* why =
        report.options.mode == LaneMode::kSynced
            ? "in synced mode every lane starts each step from the reference's weights; only free "
              "mode shows outcomes"
        : report.captured >= 0
            ? "a handful of captured steps does not show how training ends; the sections below "
              "show where numbers are lost"
            : "the reference did not learn: its loss fell by no more than its batch noise";
    lead += fmt::format("Not judged: {} ({}). ", unjudged, why);
  }
  if (!fine.empty() || !worse.empty() || !unclear.empty()) {
    lead += fmt::format("Fine means: {}. ", margin_text(report));
  }
  if (report.lanes.size() == 1) lead += "Only the reference was run; name other lanes in --lanes. ";
  lead +=
      noise_text(report) + " One seed rules out a large regression; it does not prove equality.";
  out.push_back(paragraph(lead));
  for (const LaneReport& lane : report.lanes) {
    const Verdict verdict = lane.judgement.verdict;
    if (verdict == Verdict::kBroke) add_broken(report, lane, out);
    if (lane.is_candidate() && (verdict == Verdict::kWorse || verdict == Verdict::kUnclear)) {
      out.push_back(paragraph(fmt::format("{}, {}: {}.", lane.info.name, to_string(verdict),
                                          distance_text(lane.judgement))));
    }
    if (lane.nonfinite && (lane.is_candidate() || verdict == Verdict::kBroke)) {
      out.push_back(paragraph(lane.info.name + ". " + nonfinite_text(report, *lane.nonfinite)));
    }
    if (lane.underflow) out.push_back(paragraph(underflow_text(report, lane)));
  }
  return out;
}

}  // namespace

Section verdict_section() {
  return {"verdict", "Verdict", true, write_verdict};
}

}  // namespace lockstep
