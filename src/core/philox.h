// The ten rounds of Philox4x32-10, for the host and for GPUs.
#pragma once

#include <array>
#include <cstdint>

#include "src/core/host_device.h"

namespace lockstep {

// Ten rounds of two 32x32-bit multiplications and a key that grows by two constants. Source:
// J. Salmon et al., SC 2011: multipliers of table 2, increments of section 3 (golden ratio,
// sqrt(3) - 1).
LOCKSTEP_HOST_DEVICE constexpr std::array<uint32_t, 4> philox_rounds(
    std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kMultiplier0) * counter[0];
    const uint64_t product1 = static_cast<uint64_t>(kMultiplier1) * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

}  // namespace lockstep
