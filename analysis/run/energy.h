// The limit at which underflow matters.
// Measured by energy, the sum of squares: many tiny values may become zero without any loss. The
// findings and the recommendation use the same limit.
#pragma once

namespace lockstep {

// A judgement: 1 % of a tensor's energy is 10 % of its norm.
inline constexpr double kEnergyLimit = 0.01;

}  // namespace lockstep
