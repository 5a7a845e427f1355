// A range table as JSON: in reports and in the answer of `recommend`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "analysis/ranges/scale_interval.h"

namespace lockstep {

nlohmann::ordered_json range_object(const RangeTable& ranges);

}  // namespace lockstep
