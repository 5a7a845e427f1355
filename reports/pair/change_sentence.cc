// See change_sentence.h.
#include "reports/pair/change_sentence.h"

#include <fmt/format.h>

#include "analysis/report/main_finding.h"
#include "reports/words/outcome_words.h"

namespace lockstep {
namespace {

// What the lane did, after its name: "broke at step 39", "trains as fp32 does".
std::string deed_of(const Report& report, const LaneReport& lane) {
  const std::string& reference = report.reference().info.name;
  switch (lane.judgement.verdict) {
    case Verdict::kBroke: {
      const int64_t step = lane_break_step(lane);
      return step >= 0 ? fmt::format("broke at step {}", step) : "broke";
    }
    case Verdict::kFine:
      return fmt::format("trains as {} does", reference);
    case Verdict::kUnclear:
      return fmt::format("may train worse than {} does", reference);
    case Verdict::kWorse:
      return fmt::format("trains worse than {} does", reference);
    case Verdict::kStalled:
      return "does not learn";
    case Verdict::kTooShort:
    case Verdict::kUnjudged:
      return fmt::format("is not judged ({})", to_string(why_unjudged(report)));
    default:
      return "is not judged";
  }
}

}  // namespace

std::string change_sentence(const ReportPair& pair, const LaneComparison& lanes) {
  if (!lanes.lanes.is_pair()) {
    const bool is_new = lanes.lanes.before < 0;
    const LaneReport& lane = is_new ? pair.lane_after(lanes) : pair.lane_before(lanes);
    return fmt::format("{} is in {} only, where it {}.", lane.info.name,
                       is_new ? pair.after_name : pair.before_name,
                       deed_of(is_new ? pair.after : pair.before, lane));
  }
  const LaneReport &before = pair.lane_before(lanes), &after = pair.lane_after(lanes);
  const std::string old_deed = deed_of(pair.before, before);
  const std::string deed = deed_of(pair.after, after);
  const bool same_name = before.info.name == after.info.name;
  if (same_name && old_deed == deed) {
    return fmt::format("{} {} in both runs.", before.info.name, deed);
  }
  return fmt::format("{} {} in {}; in {} {} {}.", before.info.name, old_deed, pair.before_name,
                     pair.after_name,
                     same_name ? "it" : after.info.name + ", which takes its place,", deed);
}

bool is_shown(const ReportPair& pair, const LaneComparison& lanes) {
  const auto counts = [](const Report& report, int lane) {
    if (lane < 0) return false;
    return has_sentence(report.lanes[static_cast<size_t>(lane)]);
  };
  return counts(pair.before, lanes.lanes.before) || counts(pair.after, lanes.lanes.after);
}

}  // namespace lockstep
