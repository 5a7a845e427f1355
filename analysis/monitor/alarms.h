// What a monitored run is warned of while it trains: rules over its steps, one row each. The report
// applies the same rules to the run file. Knows nothing of where steps come from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/graph/site.h"
#include "src/train/observer.h"
#include "src/train/step_record.h"

namespace lockstep {

struct LiveAlarm {
  std::string rule = {};                // the row's name
  int64_t step = -1;                    // 0-based
  int32_t site = -1;                    // the worst one; -1: the step as a whole
  int64_t rank = -1, micro_batch = -1;  // where the site's values are from; -1: not known
  size_t more = 0;                      // other sites with the same alarm
  std::string sentence = {};            // what happened: value and limit
};

// A monitored run's sites, and the formats in which it holds their values, by site id.
struct MonitoredSites {
  const SiteTable* table = nullptr;
  const std::vector<std::string>* formats = nullptr;
};

// A rule sees every step once, in order, and keeps what it needs of earlier ones. It raises one
// alarm for a place, and another one only after the place has recovered.
class AlarmRule {
 public:
  virtual ~AlarmRule() = default;
  virtual void check(const MonitoredSites& sites, const StepRecord& step,
                     std::vector<LiveAlarm>& alarms) = 0;
};

struct AlarmRow {
  std::string_view name, help, source;
  std::unique_ptr<AlarmRule> (*make)();
};
std::span<const AlarmRow> alarm_rows();

// All rules. Requires: `sites` outlives it.
class Alarms {
 public:
  explicit Alarms(MonitoredSites sites);
  // The alarms of this step, at most one of each rule.
  std::vector<LiveAlarm> check(const StepRecord& step);

 private:
  MonitoredSites sites_;
  std::vector<std::unique_ptr<AlarmRule>> rules_;
};

}  // namespace lockstep
