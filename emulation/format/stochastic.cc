// The random bits of stochastic rounding, one element at a time: the definition of the layout.
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

uint32_t stochastic_bits(const StochasticArrayKey& key, uint64_t index) {
  const uint64_t block = index / kStochasticGroup * kStochasticRow + index % kStochasticRow;
  const auto words = philox4x32(key.key, {low(block), high(block), key.nonce[0], key.nonce[1]});
  return words[index / kStochasticRow % 4];
}

uint32_t stochastic_bits(const StochasticKey& key, uint64_t index) {
  return stochastic_bits(derive_array_key(key), index);
}

}  // namespace lockstep
