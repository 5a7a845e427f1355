// Random numbers from counters, without state: the n-th number of a stream is a pure function of
// (key, n). It does not depend on threads, vector width, machine, or earlier draws. Source:
// J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox4x32-10).
#pragma once

#include <array>
#include <cstdint>
#include <utility>

namespace lockstep {

// Ten rounds of Philox: 128 random bits from a 64-bit key and a 128-bit counter.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter);

// A named stream of 32-bit numbers. `purpose` separates the streams of one seed.
enum class RandomPurpose : uint32_t {
  kInit = 1,
  kShuffle,
  kSyntheticData,
  kTwin,
  kTest,
  kMaskedTokens,
  kNoise,
  kDropout,
  kSampledSums,                 // which outputs of products are recomputed exactly
  kHadamardSigns = 0x48414441,  // "HADA": its numbers are older than this row
};

class RandomStream {
 public:
  RandomStream(uint64_t seed, RandomPurpose purpose, uint32_t index = 0);
  uint32_t bits(uint64_t n) const;                     // the n-th number
  std::array<uint32_t, 4> four(uint64_t block) const;  // numbers 4 block to 4 block + 3
  double uniform(uint64_t n) const;                    // [0, 1), 32 bits of resolution
  // Block b is Philox of key() and the counter {b, b >> 32, nonce()}.
  std::array<uint32_t, 2> key() const { return key_; }
  std::array<uint32_t, 2> nonce() const { return {purpose_, index_}; }
  // A permutation of 0..size-1 (Fisher-Yates driven by bits(n)), written into `out`.
  template <typename Vector>
  void shuffle(Vector& out) const {
    for (uint64_t i = out.size(); i > 1; --i) {
      const uint64_t j = (static_cast<uint64_t>(bits(i)) * i) >> 32;
      std::swap(out[i - 1], out[j]);
    }
  }

 private:
  std::array<uint32_t, 2> key_;
  uint32_t purpose_, index_;
};

}  // namespace lockstep
