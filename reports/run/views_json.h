// The keys of what the pictures show: heat map, chains, exponents, errors of a lane; loss scales
// and costs of the run. docs/report-json.md has their table.
#pragma once

#include "analysis/report/report.h"
#include "reports/writers/json_keys.h"

namespace lockstep {

// A lane of a report. No keys of lanes of which no views were read.
struct LaneViewsOf {
  const Report& report;
  const LaneReport& lane;
};
const JsonObject<LaneViewsOf>& json_object(const LaneViewsOf*);

struct ScaleRange {
  const RangeTable& ranges;
};
const JsonObject<ScaleRange>& json_object(const ScaleRange*);

struct CostsOf {
  const Report& report;
};
const JsonObject<CostsOf>& json_object(const CostsOf*);

}  // namespace lockstep
