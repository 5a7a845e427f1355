// What the pictures show, as JSON: heat map, chains, exponents, errors of a lane; loss scales and
// costs of the run. docs/report-json.md lists the keys.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "analysis/report/report.h"

namespace lockstep {

// Adds to the object of a lane. Nothing for lanes of which no views were read.
void add_views(const Report& report, const LaneReport& lane, nlohmann::ordered_json& out);
nlohmann::ordered_json loss_scales_json(const Report& report);
nlohmann::ordered_json costs_json(const Report& report);

}  // namespace lockstep
