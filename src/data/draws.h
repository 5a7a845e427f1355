// The random numbers of a synthetic example, one counter stream per example: example i is a pure
// function of (seed, i).
#pragma once

#include <cstdint>

#include "src/core/random.h"

namespace lockstep {

class Draws {
 public:
  Draws(uint64_t seed, int64_t example)
      : stream_(seed, RandomPurpose::kSyntheticData, static_cast<uint32_t>(example)) {}
  double between(double low, double high) { return low + (high - low) * stream_.uniform(n_++); }
  uint32_t bits() { return stream_.bits(n_++); }
  int below(int count) {
    return static_cast<int>(static_cast<uint64_t>(bits()) * static_cast<uint64_t>(count) >> 32);
  }

 private:
  RandomStream stream_;
  uint64_t n_ = 0;
};

}  // namespace lockstep
