// Drawings of accumulators.
// Draws a row of the table from its fields: a tensor core's block bit by bit, the steps of chains
// and of CPU units. `lockstep list accumulators NAME` and docs/accumulators.md show the drawings.
#pragma once

#include <string>

#include "emulation/accumulator/accumulator.h"

namespace lockstep {

// Lines of at most kPictureWidth characters, each ending in a newline. Rows with the same
// arithmetic have the same drawing.
std::string accumulator_picture(const Accumulator& accumulator);
inline constexpr int kPictureWidth = 96;

}  // namespace lockstep
