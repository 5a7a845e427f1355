// Does an array's hash detect every change?
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "emulation/kernels/quantize.h"
#include "emulation/stats/hash.h"

using namespace lockstep;

TEST_CASE("the hash detects every single changed bit, every swap, and a change of place") {
  for (uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{4095}, uint64_t{1} << 33}) {
    for (int bit = 0; bit < 32; ++bit) {
      const float x = 1.25f, y = std::bit_cast<float>(std::bit_cast<uint32_t>(x) ^ 1u << bit);
      CHECK(hash_element(x, index) != hash_element(y, index));
    }
    for (int bit = 0; bit < 64; ++bit) {
      const double x = 1.25, y = std::bit_cast<double>(std::bit_cast<uint64_t>(x) ^ 1ull << bit);
      CHECK(hash_element(x, index) != hash_element(y, index));
    }
  }
  const auto pair = [](float a, float b) { return hash_element(a, 0) + hash_element(b, 1); };
  CHECK(pair(1, 2) != pair(2, 1));
  // Exchanges of numbers that differ in few bits, in a row and across rows.
  for (const uint64_t place : {1, 2, 15, 16, 17, 32, 4096, 65536}) {
    for (int bit = 0; bit < 32; ++bit) {
      const float x = 1.25f, y = std::bit_cast<float>(std::bit_cast<uint32_t>(x) ^ 1u << bit);
      CHECK(hash_element(x, 0) + hash_element(y, place) !=
            hash_element(y, 0) + hash_element(x, place));
      // ... and the same bit changed in two places.
      CHECK(hash_element(x, 0) + hash_element(x, place) !=
            hash_element(y, 0) + hash_element(y, place));
    }
  }
  // 2^16 arrays of two small numbers: no two equal hashes (expected collisions 2^-33).
  std::vector<uint64_t> all;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) all.push_back(pair(static_cast<float>(a), static_cast<float>(b)));
  }
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
}
