// Findings, and the places they name, as JSON. docs/report-json.md lists the keys.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "analysis/report/report.h"

namespace lockstep {

nlohmann::ordered_json place_json(const Site& site);
nlohmann::ordered_json finding_json(const Report& report, const LaneReport& lane, const Finding& f);

}  // namespace lockstep
