// Everything that the sections show of a lane, as JSON, with all digits. docs/report-json.md lists
// the keys.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "analysis/report/report.h"

namespace lockstep {

nlohmann::ordered_json lane_json(const Report& report, const LaneReport& lane);

}  // namespace lockstep
