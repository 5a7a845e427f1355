// Decides which parameter gradients are rounding noise.
// The recommendation's ranges and the findings use the same rule.
#pragma once

namespace lockstep {

// A parameter gradient whose largest value of the run is below 2^-kNoiseOctaves of its layer's
// largest gradient is taken for rounding noise and needs no scale (a convolution's bias before a
// batch norm: exactly zero in theory). One rounding error is 2^-24 of the terms; a sum of 2^8 of
// them, of random signs, grows by sqrt(2^8) = 2^4.
inline constexpr int kNoiseOctaves = 24 - 4;

}  // namespace lockstep
