// The range table of `recommend` as text.
#pragma once

#include <string>

#include "analysis/recommend/scale_interval.h"

namespace lockstep {

std::string range_text(const RangeTable& ranges);

}  // namespace lockstep
