// A range table as JSON: in reports and in the answer of `recommend`.
#pragma once

#include "analysis/ranges/scale_interval.h"
#include "reports/writers/json_keys.h"

namespace lockstep {

const JsonObject<RangeTable>& json_object(const RangeTable*);

}  // namespace lockstep
