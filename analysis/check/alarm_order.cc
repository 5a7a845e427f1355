// See alarm_order.h.
#include "analysis/check/alarm_order.h"

#include <algorithm>
#include <functional>

#include "analysis/check/metrics.h"

namespace lockstep {

void sort_alarms(CheckResult& result) {
  const auto rank = [](const Alarm& alarm) {
    if (alarm.finding == kSetting) return alarm.layer.empty() ? -3 : -4;
    if (alarm.finding == kOtherInputs) return -2;
    if (alarm.finding.empty() && alarm.metric == MetricId::kLearningRate) return -2;
    if (alarm.finding == kNoGradient) return -1;
    const bool first = alarm.finding.empty() && metric_row(alarm.metric).first_step;
    return first && alarm.site >= 0 ? 0 : first ? 1 : 2;
  };
  std::ranges::stable_sort(result.alarms, [&](const Alarm& a, const Alarm& b) {
    if (rank(a) != rank(b)) return rank(a) < rank(b);
    if (rank(a) == 0) return a.site < b.site;
    return a.times > b.times;
  });
  std::ranges::stable_sort(result.improvements, std::greater<>(), &Alarm::times);
}

}  // namespace lockstep
