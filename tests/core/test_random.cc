// Philox against its published answers, and the streams built on it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "src/core/random.h"

using namespace lockstep;

TEST_CASE("Philox4x32-10 gives the known answers") {
  // The three vectors of the Random123 distribution (file kat_vectors, philox4x32 10).
  using Words = std::array<uint32_t, 4>;
  CHECK(philox4x32({0, 0}, {0, 0, 0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("streams differ by seed, purpose and index, and by nothing else") {
  const RandomStream stream(1, RandomPurpose::kTest, 3);
  int equal[3] = {};
  const RandomStream others[3] = {RandomStream(2, RandomPurpose::kTest, 3),
                                  RandomStream(1, RandomPurpose::kInit, 3),
                                  RandomStream(1, RandomPurpose::kTest, 4)};
  const RandomStream same(1, RandomPurpose::kTest, 3);
  for (uint64_t n = 0; n < 1000; ++n) {
    CHECK(same.bits(n) == stream.bits(n));
    for (int k = 0; k < 3; ++k) equal[k] += others[k].bits(n) == stream.bits(n);
  }
  // 1000 chances of 2^-32 each.
  for (const int e : equal) CHECK(e == 0);
}

TEST_CASE("uniform numbers have the mean and variance of [0, 1) within 5 sigma") {
  const RandomStream stream(7, RandomPurpose::kTest);
  const int n = 100000;
  double sum = 0, sum_sq = 0;
  for (int i = 0; i < n; ++i) {
    const double u = stream.uniform(static_cast<uint64_t>(i));
    REQUIRE(u >= 0);
    REQUIRE(u < 1);
    sum += u;
    sum_sq += (u - 0.5) * (u - 0.5);
  }
  // Variance of u is 1/12, of (u - 1/2)^2 it is 1/80 - 1/144 = 1/180.
  CHECK(std::abs(sum / n - 0.5) < 5 * std::sqrt(1.0 / 12 / n));
  CHECK(std::abs(sum_sq / n - 1.0 / 12) < 5 * std::sqrt(1.0 / 180 / n));
}

TEST_CASE("shuffle permutes, and every place is reachable") {
  const int n = 6, trials = 6000;
  int first_place[n] = {};
  for (uint32_t t = 0; t < trials; ++t) {
    std::vector<int> v(n);
    std::iota(v.begin(), v.end(), 0);
    RandomStream(11, RandomPurpose::kShuffle, t).shuffle(v);
    ++first_place[v[0]];
    std::sort(v.begin(), v.end());
    for (int i = 0; i < n; ++i) REQUIRE(v[static_cast<size_t>(i)] == i);
  }
  // Binomial with p = 1/6.
  const double sigma = std::sqrt(trials * (1.0 / n) * (1 - 1.0 / n));
  for (const int c : first_place) CHECK(std::abs(c - trials / n) < 5 * sigma);
}
