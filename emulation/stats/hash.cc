// The hash of a double.
#include "emulation/stats/hash.h"

#include <bit>

namespace lockstep {

uint64_t hash_element(double value, uint64_t index) {
  uint64_t mixed = std::bit_cast<uint64_t>(value) ^ index * kHashIndex64;
  mixed ^= mixed >> kHashShift64;
  mixed *= kHashMultiplier64;
  mixed ^= mixed >> kHashShift64;
  mixed *= kHashMultiplier64;
  return mixed ^ mixed >> kHashShift64;
}

}  // namespace lockstep
