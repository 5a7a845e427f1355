// Counters and keys of streams; the rounds are philox.h's.
#include "src/core/random.h"

#include "src/core/philox.h"

namespace lockstep {
namespace {

constexpr double kTwoToMinus32 = 1.0 / 4294967296.0;

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter) {
  return philox_rounds(key, counter);
}

RandomStream::RandomStream(uint64_t seed, RandomPurpose purpose, uint32_t index)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      purpose_(static_cast<uint32_t>(purpose)),
      index_(index) {}

std::array<uint32_t, 4> RandomStream::four(uint64_t block) const {
  return philox4x32(
      key_, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), purpose_, index_});
}

uint32_t RandomStream::bits(uint64_t n) const {
  return four(n / 4)[n % 4];
}

double RandomStream::uniform(uint64_t n) const {
  return bits(n) * kTwoToMinus32;
}

}  // namespace lockstep
