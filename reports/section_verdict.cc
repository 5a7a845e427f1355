// Section 1: which lanes trained as the reference did, and which place of the others broke first.
#include <fmt/format.h>

#include <cmath>

#include "reports/number_text.h"
#include "reports/section.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

std::string place(const Report& report, int32_t site_id) {
  const Site& site = report.site(site_id);
  const std::string layer = site.layer.empty() ? "(no layer)" : site.layer;
  return fmt::format("layer {}, {} ({} {})", layer, to_string(site.role), site.op,
                     to_string(site.point));
}

std::string nonfinite_text(const Report& report, const NonfiniteCause& cause) {
  const uint64_t bad = cause.to_infinity + cause.nan;
  std::string what = cause.to_infinity > 0 ? "overflowed to infinity" : "were not a number";
  if (bad == 0) what = "held an infinity that its op had computed";
  const std::string how_many =
      bad == 0 ? "some" : fmt::format("{} of {}", with_thousands(bad), with_thousands(cause.count));
  return fmt::format(
      "The first non-finite values with finite inputs are in step {}: {}; {} values {}.",
      cause.step, place(report, cause.site), how_many, what);
}

std::string underflow_text(const Report& report, const LaneReport& lane) {
  return fmt::format(
      "{} loses {} of its nonzero gradient values to zero at {}; the worst step is {} with {}.",
      lane.info.name, percent(lane.underflow->to_zero_rate), place(report, lane.underflow->site),
      lane.underflow->worst_step, percent(lane.underflow->worst_step_rate));
}

std::string names_of(const Report& report, Verdict verdict) {
  std::vector<std::string> names;
  for (const LaneReport& lane : report.lanes) {
    if (lane.judgement.verdict == verdict) names.push_back(lane.info.name);
  }
  return join(names, ", ");
}

std::string margin_text(const Report& report) {
  const double margin = report.lanes.back().judgement.margin;
  return fmt::format(
      "loss over the last tenth of the run at most {} above the fp32 reference's, held-out "
      "accuracy "
      "at most {} point below",
      short_number(margin), 100 * kAccuracyMargin);
}

std::string noise_text(const Report& report) {
  if (report.twin < 0) {
    return "No twin lane was run, so it is not known how much of a difference one-ulp noise alone "
           "makes: add `twin` to --lanes.";
  }
  const LaneReport& twin = report.lanes[static_cast<size_t>(report.twin)];
  return fmt::format(
      "Noise: the twin (fp32, every weight moved by one ulp) ends {} from the reference in loss; a "
      "smaller difference says nothing about a format.",
      short_number(std::fabs(twin.judgement.gap)));
}

void add_broken(const Report& report, const LaneReport& lane, Blocks& out) {
  std::string text = fmt::format("{} broke", lane.info.name);
  if (lane.info.died_at >= 0) text += fmt::format(" (stopped at step {})", lane.info.died_at);
  text += ". ";
  if (lane.nonfinite) text += nonfinite_text(report, *lane.nonfinite);
  out.push_back(Paragraph{text});
}

void add_worse(const LaneReport& lane, Blocks& out) {
  std::string text = fmt::format("{} trained worse than the reference: loss {} higher",
                                 lane.info.name, short_number(lane.judgement.gap));
  if (std::isfinite(lane.judgement.accuracy_drop)) {
    text +=
        fmt::format(", held-out accuracy {:.2f} points lower", 100 * lane.judgement.accuracy_drop);
  }
  out.push_back(Paragraph{text + "."});
}

}  // namespace

Blocks verdict_section(const Report& report) {
  Blocks out;
  std::string lead;
  const std::string fine = names_of(report, Verdict::kFine);
  if (!fine.empty()) lead = fmt::format("Fine: {} ({}). ", fine, margin_text(report));
  const std::string worse = names_of(report, Verdict::kWorse);
  if (!worse.empty()) lead += fmt::format("Worse: {}. ", worse);
  const std::string broke = names_of(report, Verdict::kBroke);
  if (!broke.empty()) lead += fmt::format("Broke: {}. ", broke);
  const std::string unjudged = names_of(report, Verdict::kUnjudged);
  if (!unjudged.empty()) {
    const bool synced = report.options.mode == LaneMode::kSynced;
    lead += fmt::format("Not judged: {} ({}). ", unjudged,
                        synced ? "in synced mode every lane starts each step from the reference's "
                                 "weights; outcomes are judged in free mode"
                               : "the reference's own loss did not fall in this run");
  }
  if (report.lanes.size() == 1) lead += "Only the reference was run; name other lanes in --lanes. ";
  lead += noise_text(report) +
          " One seed: this rules out a large regression, it does not prove "
          "equality.";
  out.push_back(Paragraph{lead});
  for (const LaneReport& lane : report.lanes) {
    if (lane.judgement.verdict == Verdict::kBroke) add_broken(report, lane, out);
    if (lane.judgement.verdict == Verdict::kWorse) add_worse(lane, out);
    if (lane.underflow) out.push_back(Paragraph{underflow_text(report, lane)});
  }
  return out;
}

}  // namespace lockstep
