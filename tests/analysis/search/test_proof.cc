// The judgement of paired runs, with numbers made by hand.
#include "analysis/search/proof.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace lockstep {
namespace {

std::vector<ProofPair> pairs(std::initializer_list<double> differences, double fall = 2,
                             double chaos = 0.001) {
  std::vector<ProofPair> all;
  for (const double d : differences) all.push_back({d, fall, chaos, 0.5 + d});
  return all;
}

TEST_CASE("differences well below the tolerance prove it") {
  const Proof proof = judge_pairs(pairs({0.001, -0.002, 0.000, 0.003, -0.001}), 0.02);
  CHECK(proof.result == Proof::Result::kPass);
  CHECK(proof.tolerance == doctest::Approx(0.04));
  CHECK(proof.mean == doctest::Approx(0.0002));
  // t(4) at 1 - 0.05 / 3 is 3.186; s = 0.0019235.
  CHECK(proof.half_width == doctest::Approx(3.186 * 0.0019235 / std::sqrt(5.0)).epsilon(1e-3));
  CHECK(proof.smallest_shown() == doctest::Approx(proof.mean + proof.half_width));
}

TEST_CASE("differences well above it refute it, scatter leaves it open") {
  CHECK(judge_pairs(pairs({0.10, 0.11, 0.09, 0.10, 0.12}), 0.02).result == Proof::Result::kFail);
  CHECK(judge_pairs(pairs({0.10, -0.11, 0.09, -0.10, 0.02}), 0.02).result ==
        Proof::Result::kInconclusive);
}

TEST_CASE("the tolerance is never below what one ulp does") {
  const Proof proof = judge_pairs(pairs({0.05, 0.051, 0.049, 0.05, 0.05}, 2, 0.1), 0.02);
  CHECK(proof.tolerance == doctest::Approx(0.1));
  CHECK(proof.result == Proof::Result::kPass);
}

TEST_CASE("a seed that broke refutes it") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(judge_pairs(pairs({0, 0, nan, 0, 0}), 0.02).result == Proof::Result::kFail);
}

TEST_CASE("all looks together err as rarely as promised") {
  // A true difference of exactly the tolerance, scatter 1: a pass is an error. Counted over 4000
  // sequences of a fixed generator.
  uint64_t state = 1;
  const auto normal = [&] {  // the sum of 12 uniform numbers less 6
    double sum = -6;
    for (int i = 0; i < 12; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<double>(state >> 11) * 0x1p-53;
    }
    return sum;
  };
  int errors = 0;
  constexpr int kSequences = 4000;
  for (int k = 0; k < kSequences; ++k) {
    std::vector<ProofPair> seen;
    for (const int64_t stage : kProofStages) {
      while (static_cast<int64_t>(seen.size()) < stage) seen.push_back({2 + normal(), 100, 0, 0});
      const Proof proof = judge_pairs(seen, 0.02);
      errors += proof.result == Proof::Result::kPass;
      if (proof.result != Proof::Result::kInconclusive) break;
    }
  }
  CHECK(errors <= kSequences * kProofErrorRate);
  CHECK(errors >= kSequences * kProofErrorRate / 4);
}

}  // namespace
}  // namespace lockstep
