// The range table of `recommend` as text.
#pragma once

#include <string>

#include "analysis/recommend/recommend.h"

namespace lockstep {

std::string range_text(const Recommendation& found);

}  // namespace lockstep
