// The range table of `recommend` as text.
#pragma once

#include <string>

#include "analysis/ranges/scale_interval.h"
#include "reports/writers/block.h"

namespace lockstep {

std::string range_text(const RangeTable& ranges);
// The same as blocks: the table, what follows from it, the layers that stay in FP32.
TableBlock range_table(const RangeTable& ranges);
// What follows from the table, a sentence each; the first screen has the same ones.
// "Keep 2 of 5 layers in fp32 under autocast, by their range: fc1, fc2. The other 3 may use fp16."
std::string kept_layers_sentence(const RangeTable& ranges);
// "Set a static loss scale of 2^12 for fp16, or let a dynamic one find its own: 2^-16 (conv1) to
// 2^14 (fc3) fit, with 1 octave to spare." Empty: no layer fits the format.
std::string loss_scale_sentence(const RangeTable& ranges);
Blocks range_conclusions(const RangeTable& ranges);

}  // namespace lockstep
