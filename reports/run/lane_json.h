// The keys of a lane: all that the sections show of it, with all digits. docs/report-json.md has
// their table.
#pragma once

#include "analysis/report/report.h"
#include "reports/writers/json_keys.h"

namespace lockstep {

struct LaneOf {
  const Report& report;
  const LaneReport& lane;
};
const JsonObject<LaneOf>& json_object(const LaneOf*);

}  // namespace lockstep
