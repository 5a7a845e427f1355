// The range table of `recommend` as text.
#pragma once

#include <string>

#include "analysis/recommend/scale_interval.h"
#include "reports/block.h"

namespace lockstep {

std::string range_text(const RangeTable& ranges);
// The same as blocks: the table, what follows from it, the layers that stay in FP32.
TableBlock range_table(const RangeTable& ranges);
Blocks range_conclusions(const RangeTable& ranges);

}  // namespace lockstep
