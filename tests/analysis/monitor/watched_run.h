// A monitored run in which all is well, except for what a test changes, and its alarms.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/monitor/alarms.h"
#include "tests/monitor/monitored.h"

namespace lockstep::testing {

// A further site, of a module that casts to FP8.
inline constexpr int32_t kFloat8 = kMonitoredSites;
// Steps that fill every rule's memory.
inline constexpr int64_t kLead = 128;

class WatchedRun {
 public:
  WatchedRun() {
    Site fp8 = sites_.sites[kFcOutput];
    fp8.id = kFloat8;
    fp8.op = "Float8Linear";
    sites_.sites.push_back(fp8);
    formats_.push_back("bf16");
  }
  WatchedRun(const WatchedRun&) = delete;

  // A well step, for a test to change. Losses and norms vary a little, as spikes need.
  StepRecord well() const {
    StepRecord step = monitored_step(next_, true);
    LaneStep& lane = step.lanes[0];
    lane.loss = next_ % 2 == 0 ? 1 : 1.1;
    lane.gradient_norm = std::exp(next_ % 2 == 0 ? 0 : 0.1);
    lane.lr = {0.5, 0.125};
    lane.scalers[0] = {.scale = kMonitoredScale};
    const SiteRecord weight = lane.sites[kFcWeight];
    for (SiteRecord& site : lane.sites) site = monitored_site(0);
    lane.sites.push_back(monitored_site(0));
    // No value of the FP8 module becomes zero.
    auto& bins = lane.sites[kFloat8].stats.exponent_histogram;
    std::swap(bins[127 - kLowerOctaves], bins[126]);
    lane.sites[kFcWeight].update = weight.update;
    lane.sites[kFcWeight].update.stats.stagnant = 10;
    for (size_t s = 0; s < lane.sites.size(); ++s) {
      const auto id = static_cast<int64_t>(s);
      lane.sites[s].live = {.largest_rank = 10 + id,
                            .largest_micro_batch = 20 + id,
                            .nonfinite_rank = 30 + id,
                            .nonfinite_micro_batch = 40 + id};
    }
    return step;
  }

  // The alarms of this rule; those of others are of no interest.
  std::vector<LiveAlarm> next(const std::string& rule, StepRecord step) {
    step.step = next_++;
    std::vector<LiveAlarm> alarms = alarms_.check(step);
    std::erase_if(alarms, [&](const LiveAlarm& alarm) { return alarm.rule != rule; });
    return alarms;
  }
  std::vector<LiveAlarm> next(const std::string& rule,
                              const std::function<void(LaneStep&)>& change) {
    StepRecord step = well();
    change(step.lanes[0]);
    return next(rule, std::move(step));
  }
  // Well steps. Returns: how many alarms of the rule there were.
  size_t lead(const std::string& rule, int64_t steps = kLead) {
    size_t told = 0;
    for (int64_t i = 0; i < steps; ++i) told += next(rule, well()).size();
    return told;
  }
  int64_t last_step() const { return next_ - 1; }

 private:
  MonitoredRun run_ = monitored_run(monitored_header());
  SiteTable sites_ = run_.sites;
  std::vector<std::string> formats_ = run_.lane.site_formats;
  Alarms alarms_{{&sites_, &formats_}};
  int64_t next_ = 0;
};

}  // namespace lockstep::testing
