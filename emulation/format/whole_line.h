// The size of blocks that are as long as the sum they belong to.
#pragma once

#include <limits>

namespace lockstep {

// BlockFormat::block_size: one block for all elements along the sum, however many; as a square, one
// for the whole matrix.
inline constexpr int kWholeLine = std::numeric_limits<int>::max();

}  // namespace lockstep
