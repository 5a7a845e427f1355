// Shares of energy that a lane loses without an overflow, on a chain of five sites.
#include "analysis/findings/lost_shares.h"

#include <doctest/doctest.h>

#include "src/policy/find_policy.h"
#include "tests/analysis/findings/hand_evidence.h"

namespace lockstep {
namespace {

using testing::chain;
using testing::chain_formats;
using testing::clean_step;

std::vector<UpdateRecord> no_updates() {
  return std::vector<UpdateRecord>(5);
}

std::vector<Finding> found_in(const StepEvidence& lane, const StepEvidence& reference,
                              const std::vector<UpdateRecord>& updates = no_updates(),
                              const char* policy = "pure-fp16",
                              const std::vector<AccumulatorHealth>& sums = {}) {
  static const SiteTable sites = chain();
  LostShares shares(1, sites, chain_formats());
  for (int64_t step = 0; step < 4; ++step) {
    shares.add(step, false, lane, reference, updates, no_updates());
  }
  return shares.findings(find_policy(policy), sums, std::vector<AccumulatorHealth>(sums.size()));
}

TEST_CASE("many small values may become zero: energy decides") {
  StepEvidence lane = clean_step();
  lane.to_zero[2] = 90;
  lane.round_err_sq[2] = 0.9 * kEnergyLimit * lane.sum_sq[2];
  CHECK(found_in(lane, clean_step()).empty());
  lane.round_err_sq[2] = 1.1 * kEnergyLimit * lane.sum_sq[2];
  const auto found = found_in(lane, clean_step());
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kUnderflow);
  CHECK(found[0].site == 2);
  CHECK(found[0].share == doctest::Approx(1.1 * kEnergyLimit));
}

TEST_CASE("rounding without underflow is no loss, however coarse the format") {
  StepEvidence lane = clean_step();
  lane.round_err_sq[2] = 0.5 * lane.sum_sq[2];
  CHECK(found_in(lane, clean_step()).empty());
}

TEST_CASE("the origin is the first site that loses at least half as much as the worst") {
  StepEvidence lane = clean_step();
  for (const size_t i : {2, 3}) lane.to_zero[i] = 50;
  lane.round_err_sq[2] = 60, lane.round_err_sq[3] = 80;
  auto found = found_in(lane, clean_step());
  REQUIRE(found.size() == 1);
  CHECK(found[0].site == 2);
  CHECK(found[0].consequences == std::vector<int32_t>{3});
  lane.round_err_sq[2] = 20;
  found = found_in(lane, clean_step());
  CHECK(found.at(0).site == 3);
}

TEST_CASE("a gradient that is gone altogether is a kind of its own, with all layers after it") {
  StepEvidence lane = clean_step();
  lane.to_zero[2] = lane.source_zero[3] = 100;
  lane.round_err_sq[2] = lane.sum_sq[2];
  lane.sum_sq[3] = 0;
  auto found = found_in(lane, clean_step());
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kNoGradient);
  CHECK(found[0].site == 2);
  CHECK(found[0].consequences == std::vector<int32_t>{3});
  StepEvidence reference = clean_step();  // a layer that is dead in FP32, too
  reference.sum_sq[2] = reference.sum_sq[3] = 0;
  CHECK(found_in(lane, reference).empty());
}

TEST_CASE("storage: a lost value is found where the result of its reader is wrong") {
  const SiteTable sites = testing::stored_chain("c:eps", Role::kBuffer);
  const std::vector<UpdateRecord> updates(4);
  const auto found = [&](double error_of_result) {
    LostShares shares(1, sites, chain_formats());
    StepEvidence lane = clean_step(4);
    lane.to_zero[0] = 100;
    lane.round_err_sq[0] = lane.sum_sq[0];
    lane.err_sq[2] = error_of_result * lane.ref_sq[2];
    shares.add(0, false, lane, clean_step(4), updates, updates);
    lane.count[0] = 0;  // stored once
    shares.add(1, false, lane, clean_step(4), updates, updates);
    return shares.findings(find_policy("pure-fp16"), {}, {});
  };
  CHECK(found(0.9 * kEnergyLimit).empty());
  const std::vector<Finding> harmful = found(1.1 * kEnergyLimit);
  REQUIRE(harmful.size() == 1);
  CHECK(harmful[0].kind == FindingKind::kStorageUnderflow);
  CHECK(harmful[0].site == 0);
  CHECK(harmful[0].share == 1);
  CHECK(harmful[0].steps == 1);
}

TEST_CASE("updates: by their energy, and not where Kahan's sum or chance keeps them") {
  std::vector<UpdateRecord> updates = no_updates();
  updates[4] = {true, {.stagnant = 99, .count = 100, .update_sq = 1, .stagnant_sq = 0.05}};
  CHECK(found_in(clean_step(), clean_step(), updates).empty());  // 99 of 100, but small ones
  updates[4].stats.stagnant_sq = 0.5;
  const auto found = found_in(clean_step(), clean_step(), updates);
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kLostUpdates);
  CHECK(found[0].share == 0.5);
  CHECK(found_in(clean_step(), clean_step(), updates, "pure-fp16-kahan").empty());
  CHECK(found_in(clean_step(), clean_step(), updates, "pure-fp16-stochastic").empty());
}

TEST_CASE("swamping: terms without effect and a wrong sum, which FP32 gets right") {
  std::vector<AccumulatorHealth> sums(5);
  sums[1] = {
      .samples = 10, .compared = 10, .addends = 100, .swamped = 60, .err_sq = 0.04, .exact_sq = 1};
  const auto found = found_in(clean_step(), clean_step(), no_updates(), "pure-fp16", sums);
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kSwamping);
  CHECK(found[0].share == 0.6);
  CHECK(found[0].value == doctest::Approx(0.2));
  sums[1].err_sq = 1e-4;
  CHECK(found_in(clean_step(), clean_step(), no_updates(), "pure-fp16", sums).empty());
}

}  // namespace
}  // namespace lockstep
