// The key of an array, and the bits of one element by the whole key.
#include "emulation/format/stochastic.h"

#include "src/core/random.h"

namespace lockstep {
namespace {
uint32_t low(uint64_t value) {
  return static_cast<uint32_t>(value);
}
uint32_t high(uint64_t value) {
  return static_cast<uint32_t>(value >> 32);
}
}  // namespace

StochasticArrayKey derive_array_key(const StochasticKey& key) {
  const auto words = philox4x32({low(key.seed), high(key.seed)},
                                {key.stream, key.site, low(key.step), high(key.step)});
  return {{words[0], words[1]}, {words[2], words[3]}};
}

uint32_t stochastic_bits(const StochasticKey& key, uint64_t index) {
  return stochastic_bits(derive_array_key(key), index);
}

}  // namespace lockstep
