// The random bits that an element gets in stochastic rounding.
// They come from Philox4x32-10 and depend on (seed, stream, step, site, index) alone. In the
// layout, 16 neighbouring elements take the same output word of 16 consecutive counters, so a
// vector of counters gives four vectors of bits without shuffling.
//
//   array key   (k0, k1, n0, n1) = philox(seed; stream, site, step low, step high)
//   element i   block = 16 * floor(i / 64) + i mod 16,  word = floor(i / 16) mod 4
//               bits  = philox((k0, k1); block low, block high, n0, n1)[word]
#pragma once

#include <array>
#include <cstdint>

#include "emulation/format/rounding.h"
#include "src/core/host_device.h"
#include "src/core/philox.h"

namespace lockstep {

inline constexpr uint64_t kStochasticRow = 16;                    // elements per output word
inline constexpr uint64_t kStochasticGroup = 4 * kStochasticRow;  // elements per row of counters

// The array key: made once, used for every element.
struct StochasticArrayKey {
  std::array<uint32_t, 2> key{};
  std::array<uint32_t, 2> nonce{};
};
StochasticArrayKey derive_array_key(const StochasticKey& key);

LOCKSTEP_HOST_DEVICE inline uint32_t stochastic_bits(const StochasticArrayKey& key,
                                                     uint64_t index) {
  const uint64_t block = index / kStochasticGroup * kStochasticRow + index % kStochasticRow;
  const auto words =
      philox_rounds(key.key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                              key.nonce[0], key.nonce[1]});
  return words[index / kStochasticRow % 4];
}

}  // namespace lockstep
