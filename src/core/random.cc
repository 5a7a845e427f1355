// Philox4x32-10: ten rounds of two 32x32-bit multiplications and a key that grows by two constants.
#include "src/core/random.h"

namespace lockstep {
namespace {

// Multipliers and Weyl increments (golden ratio, sqrt(3) - 1) of the paper's table 2 and section 3.
constexpr uint32_t kMultiplier0 = 0xD2511F53u;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kWeyl0 = 0x9E3779B9u;
constexpr uint32_t kWeyl1 = 0xBB67AE85u;
constexpr int kRounds = 10;
constexpr double kTwoToMinus32 = 1.0 / 4294967296.0;

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter) {
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
