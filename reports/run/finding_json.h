// Findings, and the places they name, as JSON: docs/report-json.md.
#pragma once

#include "analysis/report/report.h"
#include "reports/writers/json_keys.h"

namespace lockstep {

const JsonObject<Site>& json_object(const Site*);

// With the report whose sites a finding names.
struct FindingOf {
  const Report& report;
  const LaneReport& lane;
  const Finding& finding;

  FindingContext context() const { return context_of(report, lane, finding); }
};
const JsonObject<FindingOf>& json_object(const FindingOf*);

// Null: -1.
const Site* site_of(const Report& report, int32_t id);

}  // namespace lockstep
