// 2^e and floor(log2 |x|) of doubles, without a library call for the ordinary ones.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace lockstep {

// Exact for e in [-1074, 1023]; zero or infinity beyond.
inline double power_of_two(int e) {
  constexpr int kBias = 1023, kFractionBits = 52;
  if (e <= -kBias || e > kBias) return std::ldexp(1.0, e);
  return std::bit_cast<double>(static_cast<uint64_t>(e + kBias) << kFractionBits);
}

// Requires: x finite, x != 0.
inline int binade_of(double x) {
  constexpr int kBias = 1023, kFractionBits = 52, kFieldMask = 0x7ff;
  const int field = static_cast<int>(std::bit_cast<uint64_t>(x) >> kFractionBits) & kFieldMask;
  return field != 0 ? field - kBias : std::ilogb(x);
}

}  // namespace lockstep
