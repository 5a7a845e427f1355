// See changed_code.h.
#include "analysis/check/changed_code.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "analysis/check/alarm_order.h"
#include "analysis/check/alarm_sentence.h"
#include "analysis/findings/finding_kinds.h"
#include "src/capture/capture.h"
#include "src/core/counted.h"

namespace lockstep {
namespace {

// A rewrite rounds anew: limits of narrow lanes hold a fourth of what rounding does (baseline.cc,
// kRoundingShare); another rounding of that size may have the other sign, and lies twice as far.
// Not so where casts changed: a head cast to 16 bits does 2.2 times the limit.
constexpr double kRewriteTimes = 8;
// Errors of sampled sums, which then have other addends, are octaves, and their limit is wide.
constexpr double kRewriteSumTimes = 2;

bool is_reference(const JudgedRun& run, const std::string& lane) {
  return std::ranges::any_of(run.summary.lanes, [&](const LaneSummary& one) {
    return one.is_reference && one.name == lane && one.name != kCapturedLane;
  });
}

// A loss or gradient of a lane that rounds. FP32's are the same, or there would be an alarm that
// nothing sets aside.
bool is_of_new_rounding(const JudgedRun& run, const Alarm& alarm) {
  if (!alarm.finding.empty() || run.lines.changes_casts || is_reference(run, alarm.lane))
    return false;
  switch (alarm.metric) {
    case MetricId::kSumError:
      return alarm.times <= kRewriteSumTimes;
    case MetricId::kFirstLoss:
    case MetricId::kEndLoss:
    case MetricId::kLossGap:
    case MetricId::kHeldOutLoss:
    case MetricId::kFirstGradient:
    case MetricId::kGradient:
      return alarm.times <= kRewriteTimes;
    default:
      return false;
  }
}

// Free lanes drift apart after another rounding (Adam turns the sign of a gradient near zero into
// a whole step), and values that cancel take other exponents: both show how the rounding went.
// The harm, if any, shows in the metrics of sizes and losses.
bool is_of_roundings(MetricId metric) {
  return metric == MetricId::kError || metric == MetricId::kExponents;
}

// Values that break are never inner.
bool is_inner(const JudgedRun& run, const Alarm& alarm) {
  if (alarm.site < 0 || alarm.finding == kOtherInputs || alarm.finding == kSetting) return false;
  if (alarm.finding.empty() && alarm.metric == MetricId::kNonfinite) return false;
  const auto row = std::ranges::find(finding_kinds(), alarm.finding, &FindingKindRow::name);
  const bool breaks = row != finding_kinds().end() && row->breaks;
  const auto at = static_cast<size_t>(alarm.site);
  if (alarm.finding.empty() && is_of_roundings(alarm.metric)) return true;
  const int before = run.match.sites.before_of(at);
  return !breaks && (before < 0 || !run.places.certain[static_cast<size_t>(before)]);
}

}  // namespace

void set_aside_changed_code(const JudgedRun& run, CheckResult& result) {
  if (!run.places.has_changed_code || result.draw != Draw::kSame) return;
  std::erase_if(result.improvements, [&](const Alarm& alarm) { return is_inner(run, alarm); });
  // Whether a changed setting matters, the numbers decide.
  std::vector<Alarm> alarms = result.alarms;
  std::erase_if(alarms, [](const Alarm& alarm) { return alarm.finding == kSetting; });
  if (alarms.empty() || !std::ranges::all_of(alarms, [&](const Alarm& alarm) {
        return is_inner(run, alarm) || is_of_new_rounding(run, alarm);
      })) {
    return;
  }
  result.alarms = std::move(alarms);
  sort_alarms(result);
  const auto boundary =
      std::stable_partition(result.alarms.begin(), result.alarms.end(),
                            [&](const Alarm& alarm) { return is_inner(run, alarm); });
  const std::span<const Alarm> inner(result.alarms.begin(), boundary),
      rounded(boundary, result.alarms.end());
  if (!inner.empty()) {
    result.changes.push_back(fmt::format(
        "{} inside of the changed code beyond their limits, the first: {}. The losses, "
        "gradients, updates and unchanged layers of all lanes are within theirs, so that this is "
        "no regression",
        counted(inner.size(), "number"), alarm_sentence(inner.front())));
  }
  if (!rounded.empty()) {
    result.changes.push_back(fmt::format(
        "the changed code rounds otherwise: {} of narrow lanes beyond the limits of unchanged "
        "code, at most {:.1f} times as far (a rewrite may go {:g} times), the first: {}. FP32's "
        "losses and gradients agree, so that this is no regression",
        counted(rounded.size(), "number"), std::ranges::max(rounded, {}, &Alarm::times).times,
        kRewriteTimes, alarm_sentence(rounded.front())));
  }
  result.alarms.clear();
}

}  // namespace lockstep
