// The twin: every nonzero weight moved one ulp up or down, by a seeded sign.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "src/core/random.h"

namespace lockstep {

// Element n gets its sign from draw `first` + n. Zeros and non-finite values are unchanged.
inline void move_by_one_ulp(std::span<float> weights, const RandomStream& signs, uint64_t first) {
  for (size_t n = 0; n < weights.size(); ++n) {
    if (weights[n] == 0 || !std::isfinite(weights[n])) continue;
    // Adding 1 to the bits moves away from zero by one ulp, subtracting towards it.
    const uint32_t bits = std::bit_cast<uint32_t>(weights[n]);
    weights[n] = std::bit_cast<float>((signs.bits(first + n) & 1) != 0 ? bits + 1 : bits - 1);
  }
}

}  // namespace lockstep
