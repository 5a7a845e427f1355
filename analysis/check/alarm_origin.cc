// See alarm_origin.h.
#include "analysis/check/alarm_origin.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "analysis/check/alarm_sentence.h"
#include "analysis/check/metrics.h"
#include "analysis/findings/finding_kinds.h"
#include "src/capture/capture.h"

namespace lockstep {
namespace {

// Alarms whose first step is looked for in the run file.
constexpr size_t kLocatedAlarms = 10;

// The farthest site upstream that the baseline does not have, -1: none. Its op was put there or
// replaced.
int32_t origin_of(const JudgedRun& run, const std::set<size_t>& parted, int32_t site) {
  const std::vector<Site>& sites = run.file.sites().sites;
  std::vector<int32_t> next = {site};
  std::vector<bool> seen(sites.size(), false);
  int32_t origin = -1;
  const auto has_counterpart = [&](size_t at) {
    const int before = run.match.sites.before_of(at);
    return before >= 0 && !parted.contains(static_cast<size_t>(before));
  };
  for (size_t i = 0; i < next.size(); ++i) {
    for (const int32_t feed : sites[static_cast<size_t>(next[i])].feeds) {
      const auto at = static_cast<size_t>(feed);
      if (seen[at] || has_counterpart(at)) continue;
      seen[at] = true;
      next.push_back(feed);
      origin = feed;
    }
  }
  return origin;
}

// An op of the baseline that is missing just before the place: "blocks.0 add".
std::string gone_before(const JudgedRun& run, int32_t site) {
  const int at = run.match.sites.before_of(static_cast<size_t>(site));
  if (at < 0) return "";
  const SiteFacts& here = run.baseline.run.sites[static_cast<size_t>(at)];
  for (auto s = static_cast<size_t>(at); s-- > 0;) {
    const SiteFacts& before = run.baseline.run.sites[s];
    if (before.point != "output" && before.point != "operand") continue;
    if (run.match.sites.after_of(s) < 0) return before.layer + " " + before.op;
    if (before.layer != here.layer || before.op != here.op) break;
  }
  return "";
}

// The first step in which each site's number is beyond its limit.
void find_first_steps(const JudgedRun& run, const FirstOtherBits& first_other_bits,
                      CheckResult& result) {
  std::map<std::string, std::vector<Alarm*>> by_lane;
  for (Alarm& alarm : result.alarms) {
    const bool is_open = alarm.step < 0 && alarm.site >= 0 && alarm.finding.empty();
    if (is_open) by_lane[alarm.lane].push_back(&alarm);
  }
  for (auto& [name, alarms] : by_lane) {
    // The limit is that of a mean, so single steps of a good run lie beyond it, too.
    const auto other_bits = first_other_bits.find(name);
    int64_t step = other_bits == first_other_bits.end() ? 0 : other_bits->second;
    for (; step < result.steps && !alarms.empty(); ++step) {
      std::vector<SiteMetric> asked;
      for (const Alarm* alarm : alarms) {
        asked.push_back({alarm->metric, static_cast<size_t>(alarm->site)});
      }
      const std::vector<double> now = metrics_at(run.file, run.file.lane_index(name), step, asked);
      size_t at = 0;
      std::erase_if(alarms, [&](Alarm* alarm) {
        const double x = now[at++];
        const bool is_beyond = alarm->value > alarm->limit ? x > alarm->limit : x < alarm->limit;
        if (is_beyond) alarm->step = step;
        return is_beyond;
      });
    }
  }
}

// Where a number of the whole lane leads: the first of the lane's places beyond their limits.
void name_a_place(CheckResult& result) {
  if (result.alarms.empty()) return;
  Alarm& lane = result.alarms.front();
  if (!lane.finding.empty() || metric_row(lane.metric).of != MetricOf::kLane) return;
  const Alarm* first = nullptr;
  for (const Alarm& alarm : result.alarms) {
    if (alarm.lane != lane.lane || alarm.site < 0 || alarm.step < 0) continue;
    const auto when = [](const Alarm& a) { return std::pair(a.step, a.site); };
    if (first == nullptr || when(alarm) < when(*first)) first = &alarm;
  }
  if (first == nullptr) return;
  lane.sentence += fmt::format("; the first place beyond its limit is {} ({}, step {})",
                               alarm_place(*first), alarm_subject(*first), first->step);
}

}  // namespace

void locate_alarms(const JudgedRun& run, const FirstOtherBits& first_other_bits,
                   const std::set<size_t>& parted, CheckResult& result) {
  for (size_t i = 0; i < std::min(kLocatedAlarms, result.alarms.size()); ++i) {
    Alarm& alarm = result.alarms[i];
    if (alarm.site >= 0 && (alarm.finding.empty() || i == 0)) {
      const int32_t origin = origin_of(run, parted, alarm.site);
      if (origin >= 0) {
        const Site& from = run.file.sites().sites[static_cast<size_t>(origin)];
        alarm.origin = place_text(from);
        const std::string made = run.script.changed_line_of("module " + from.layer);
        alarm.origin_line = made.empty() ? from.source_line : made;
      } else {
        if (const std::string thing = run.script.changed_thing_in(alarm.layer); !thing.empty()) {
          alarm.origin_line = run.script.line_of(thing);
          alarm.origin = fmt::format("the code of {} ({})", thing, alarm.origin_line);
        }
        alarm.gone = gone_before(run, alarm.site);
      }
    }
  }
  find_first_steps(run, first_other_bits, result);
  for (Alarm& alarm : result.alarms) alarm.sentence = alarm_sentence(alarm);
  name_a_place(result);
  const auto is_captured = [](const Alarm& alarm) { return alarm.lane == kCapturedLane; };
  constexpr double kFarBeyond = 10;
  if (!result.alarms.empty() && std::ranges::all_of(result.alarms, is_captured) &&
      std::ranges::max(result.alarms, {}, &Alarm::times).times > kFarBeyond) {
    Alarm& first = result.alarms.front();
    if (first.source_line.empty()) first.source_line = run.script.line_of("optimizer step");
    first.sentence += fmt::format(
        "; no replayed lane shows it, so the loop does something else outside of the forward and "
        "backward passes: optimizer, clipping, scaler{}",
        first.source_line.empty() ? "" : " (" + first.source_line + ")");
  }
  for (Alarm& alarm : result.improvements) alarm.sentence = alarm_sentence(alarm);
}

}  // namespace lockstep
