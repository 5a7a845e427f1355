// Shares of energy that a lane loses without an overflow, on a chain of five sites.
#include "analysis/findings/lost_shares.h"

#include <doctest/doctest.h>

#include <cmath>

#include "analysis/findings/lost_state.h"
#include "analysis/findings/swamped_sums.h"
#include "analysis/run/energy.h"
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
std::vector<SiteRecord> with(std::vector<SiteRecord> step,
                             const std::vector<UpdateRecord>& updates) {
  for (size_t i = 0; i < step.size(); ++i) step[i].update = updates[i];
  return step;
}

void set_energies(std::vector<SiteRecord>& step, const std::vector<double>& energies) {
  for (size_t i = 0; i < step.size(); ++i) step[i].stats.sum_sq = energies[i];
}

std::vector<Finding> found_in(const std::vector<SiteRecord>& lane,
                              const std::vector<SiteRecord>& reference,
                              const std::vector<UpdateRecord>& updates = no_updates(),
                              const char* policy = "pure-fp16",
                              const std::vector<AccumulatorHealth>& sums = {},
                              const SiteTable& sites = chain(),
                              const std::vector<OptimizerState>& states = {}) {
  ShareTally tally(1, sites, chain_formats());
  for (int64_t step = 0; step < 4; ++step) {
    tally.add(step, false, step == 0, with(lane, updates), reference);
  }
  std::vector<Finding> all = find_lost_shares(tally, find_policy(policy));
  if (const auto lost = find_lost_state(tally, states)) all.push_back(*lost);
  const std::vector<AccumulatorHealth> of_reference(sums.size());
  for (const Finding& f : find_swamped_sums(tally, find_policy(policy), sums, of_reference)) {
    all.push_back(f);
  }
  return all;
}

TEST_CASE("many small values may become zero: energy decides") {
  std::vector<SiteRecord> lane = clean_step();
  lane[2].stats.to_zero = 90;
  lane[2].stats.round_err_sq = 0.9 * kEnergyLimit * lane[2].stats.sum_sq;
  CHECK(found_in(lane, clean_step()).empty());
  lane[2].stats.round_err_sq = 1.1 * kEnergyLimit * lane[2].stats.sum_sq;
  const auto found = found_in(lane, clean_step());
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kUnderflow);
  CHECK(found[0].site == 2);
  CHECK(found[0].share == doctest::Approx(1.1 * kEnergyLimit));
}

TEST_CASE("rounding without underflow is no loss, however coarse the format") {
  std::vector<SiteRecord> lane = clean_step();
  lane[2].stats.round_err_sq = 0.5 * lane[2].stats.sum_sq;
  CHECK(found_in(lane, clean_step()).empty());
}

TEST_CASE("the origin is the first site that loses at least half as much as the worst") {
  std::vector<SiteRecord> lane = clean_step();
  for (const size_t i : {2, 3}) lane[i].stats.to_zero = 50;
  lane[2].stats.round_err_sq = 60, lane[3].stats.round_err_sq = 80;
  auto found = found_in(lane, clean_step());
  REQUIRE(found.size() == 1);
  CHECK(found[0].site == 2);
  CHECK(found[0].consequences == std::vector<int32_t>{3});
  lane[2].stats.round_err_sq = 20;
  found = found_in(lane, clean_step());
  CHECK(found.at(0).site == 3);
}

TEST_CASE("a gradient that is gone altogether is a kind of its own, with all layers after it") {
  std::vector<SiteRecord> lane = clean_step();
  lane[2].stats.to_zero = lane[3].stats.source_zero = 100;
  lane[2].stats.round_err_sq = lane[2].stats.sum_sq;
  lane[3].stats.sum_sq = 0;
  auto found = found_in(lane, clean_step());
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kNoGradient);
  CHECK(found[0].site == 2);
  CHECK(found[0].consequences == std::vector<int32_t>{3});
  std::vector<SiteRecord> reference = clean_step();  // a layer that is dead in FP32, too
  reference[2].stats.sum_sq = reference[3].stats.sum_sq = 0;
  CHECK(found_in(lane, reference).empty());
}

TEST_CASE("a gradient that one ulp changes by a quarter is noise, and so is what is made of it") {
  const SiteTable sites = chain();
  std::vector<SiteRecord> lane = clean_step();
  lane[2].stats.to_zero = lane[3].stats.to_zero = 100;
  for (const size_t i : {2, 3}) lane[i].stats.round_err_sq = lane[i].stats.sum_sq;
  const auto found = [&](double first, double second, size_t site) {
    ShareTally tally(1, sites, chain_formats());
    for (const double error : {first, second}) {
      tally.add(0, false, true, lane, clean_step());
      std::vector<double> of_twin(5);
      of_twin[site] = error * error;
      tally.add_twin(of_twin);
    }
    return find_lost_shares(tally, find_policy("pure-bf16"));
  };
  CHECK(found(0.5, 0.3, 2).empty());
  CHECK(found(0.5, 0.2, 2).size() == 1);
  CHECK(found(0.5, 0.3, 3).size() == 1);  // the gradient before it is none
  CHECK(found(0.5, 0.3, 1).size() == 1);  // not of the backward pass
}

TEST_CASE("storage: a lost value is found where the result of its reader is wrong") {
  const SiteTable sites = testing::stored_chain("c:eps", Role::kBuffer);
  const auto found = [&](double error_of_result) {
    ShareTally tally(1, sites, chain_formats());
    std::vector<SiteRecord> lane = clean_step(4);
    lane[0].stats.to_zero = 100;
    lane[0].stats.round_err_sq = lane[0].stats.sum_sq;
    lane[2].error.err_sq = error_of_result * lane[2].error.ref_sq;
    tally.add(0, false, true, lane, clean_step(4));
    lane[0].stats.count = 0;  // stored once
    tally.add(1, false, false, lane, clean_step(4));
    return find_lost_shares(tally, find_policy("pure-fp16"));
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

TEST_CASE("updates: a learning rate that ends too low for the format, not for FP32") {
  const auto found = [](int64_t low_from, double lost_by_reference) {
    constexpr int64_t kSteps = 40;
    const SiteTable sites = chain();
    ShareTally tally(1, sites, chain_formats());
    for (int64_t step = 0; step < kSteps; ++step) {
      std::vector<UpdateRecord> updates = no_updates(), of_reference = no_updates();
      const double all = step < low_from ? 1 : 1e-4;
      const double lost = step < low_from ? 0 : 0.99;
      updates[4] = {true, {.count = 100, .update_sq = all, .stagnant_sq = lost * all}};
      of_reference[4] = {
          true, {.count = 100, .update_sq = all, .stagnant_sq = lost * lost_by_reference * all}};
      tally.add(step, false, step == 0, with(clean_step(), updates),
                with(clean_step(), of_reference));
    }
    return find_lost_shares(tally, find_policy("pure-bf16"));
  };
  const auto tail = found(30, 0);
  REQUIRE(tail.size() == 1);
  CHECK(tail[0].kind == FindingKind::kLostUpdates);
  CHECK(tail[0].is_tail);
  CHECK(tail[0].first_step == 30);
  CHECK(tail[0].last_step == 39);
  CHECK(tail[0].steps == 10);
  CHECK(tail[0].share == doctest::Approx(0.99));
  CHECK(found(36, 0).size() == 1);
  CHECK(found(37, 0).empty());  // three steps
  CHECK(found(30, 0.6).empty());
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

TEST_CASE("other sums: their error alone, in the format that they are formed in") {
  std::vector<AccumulatorHealth> sums(5);
  sums[2] = {.samples = 10, .compared = 10, .err_sq = 1.1 * kEnergyLimit, .exact_sq = 1};
  const auto found = found_in(clean_step(), clean_step(), no_updates(), "pure-fp16", sums);
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kSwamping);
  CHECK(found[0].is_other_sum);
  CHECK(found[0].format == "fp16");
  CHECK(found[0].value == doctest::Approx(std::sqrt(1.1 * kEnergyLimit)));
  sums[2].err_sq = 0.9 * kEnergyLimit;
  CHECK(found_in(clean_step(), clean_step(), no_updates(), "pure-fp16", sums).empty());
}

TEST_CASE("additions: a buffer that takes nothing while the reference's goes one way") {
  const SiteTable sites = chain();
  std::vector<SiteRecord> lane = clean_step(), reference = clean_step();
  const auto elements = static_cast<uint64_t>(element_count(sites.sites[0].shape));
  const auto found = [&](double distance_in_steps, double lost, int64_t steps) {
    ShareTally tally(1, sites, chain_formats());
    lane[0].update = {true, {.count = elements, .update_sq = 1e-6, .stagnant_sq = lost * 1e-6}};
    reference[0].update = {true, {.count = elements, .update_sq = 1e-6}};
    lane[0].error.err_sq = distance_in_steps * distance_in_steps * 1e-6;
    for (int64_t step = 0; step < steps; ++step) tally.add(step, false, false, lane, reference);
    return !find_swamped_sums(tally, find_policy("pure-bf16"), {}, {}).empty();
  };
  CHECK(found(8, 1, 8));          // eight equal steps
  CHECK_FALSE(found(2.8, 1, 8));  // to and fro: the root of eight
  CHECK_FALSE(found(8, 0.8, 8));  // it takes some
  CHECK_FALSE(found(3, 1, 3));    // too few to tell
}

TEST_CASE("no gradient: a tanh that rounding made 1 has no slope; a dead layer is another matter") {
  SiteTable sites = chain();
  sites.sites[1].op = "tanh";
  sites.sites[2].op = "tanh_backward";
  std::vector<SiteRecord> lane = clean_step(), reference = clean_step();
  lane[2].stats.source_zero = lane[3].stats.source_zero = 100;
  lane[2].stats.sum_sq = lane[3].stats.sum_sq = 0;
  CHECK(found_in(lane, reference, no_updates(), "pure-fp16", {}, sites).empty());
  lane[1].stats.round_err_sq = 1e-4;
  const auto found = found_in(lane, reference, no_updates(), "pure-fp16", {}, sites);
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kNoGradient);
  CHECK(found[0].site == 2);
  CHECK(found[0].cause == 1);
  lane[1].stats.source_zero = 100;  // dead: nothing comes out of it
  CHECK(found_in(lane, reference, no_updates(), "pure-fp16", {}, sites).empty());
}

TEST_CASE("state: momentum by its energy, a divisor also by its elements") {
  SiteTable sites = chain();
  sites.sites[4].role = Role::kOptimizerState;
  const auto found = [&](const std::vector<SiteRecord>& lane, bool divides) {
    const std::vector<OptimizerState> states(5, {"state", 0, divides});
    return found_in(lane, clean_step(), no_updates(), "pure-fp16", {}, sites, states);
  };
  std::vector<SiteRecord> lane = clean_step();
  lane[4].stats.to_zero = 90;
  lane[4].stats.round_err_sq = 0.9 * kEnergyLimit * lane[4].stats.sum_sq;
  CHECK(found(lane, false).empty());
  REQUIRE(found(lane, true).size() == 1);
  CHECK(found(lane, true)[0].kind == FindingKind::kStateUnderflow);
  CHECK(found(lane, true)[0].share == doctest::Approx(0.9));
  lane[4].stats.round_err_sq = 2 * kEnergyLimit * lane[4].stats.sum_sq;
  REQUIRE(found(lane, false).size() == 1);
  CHECK(found(lane, false)[0].share == doctest::Approx(2 * kEnergyLimit));
  lane[4].stats.to_zero = 9;
  lane[4].stats.round_err_sq = 0;
  CHECK(found(lane, true).empty());
}

// 0, 1 operands of 2, their sum; 3 reads the sum, 4 is its result.
SiteTable plain_sum() {
  SiteTable table = chain();
  for (const size_t operand : {0, 1}) {
    table.sites[operand] =
        testing::site(static_cast<int32_t>(operand), "block", "add", Role::kActivation, {});
    table.sites[operand].node = "sum";
    table.sites[operand].point = Point::kOperand;
    table.sites[operand].index = static_cast<int>(operand);
  }
  table.sites[2] = testing::site(2, "block", "add", Role::kActivation, {0, 1});
  table.sites[2].node = "sum";
  table.sites[3] = testing::site(3, "block", "softmax", Role::kActivation, {2});
  table.sites[3].point = Point::kOperand;
  table.sites[4] = testing::site(4, "block", "softmax", Role::kActivation, {3});
  table.sites[4].node = table.sites[3].node = "reader";
  for (Site& site : table.sites) site.shape = {100};
  return table;
}

TEST_CASE("plain sums: what rounding the sum takes, against the smaller operand") {
  std::vector<SiteRecord> lane = clean_step(), reference = clean_step();
  set_energies(lane, {1e4, 1, 1e4, 1e4, 100});
  lane[2].stats.round_err_sq = 0.9 * kSwampedLimit;
  const auto found = [&](const SiteTable& sites) {
    return found_in(lane, reference, no_updates(), "pure-bf16", {}, sites);
  };
  CHECK(found(plain_sum()).empty());
  lane[2].stats.round_err_sq = 0.5;
  REQUIRE(found(plain_sum()).size() == 1);
  const Finding swamped = found(plain_sum()).front();
  CHECK(swamped.kind == FindingKind::kSwamping);
  CHECK(swamped.site == 2);
  CHECK(swamped.cause == 1);
  CHECK(swamped.share == doctest::Approx(0.5));
  CHECK(swamped.value == doctest::Approx(100));

  SiteTable bias = plain_sum();  // a vector of weights that is added to rows
  bias.sites[1].role = Role::kWeight;
  bias.sites[1].shape = {10};
  lane[1].stats.sum_sq = 0.1;
  CHECK(found(bias).empty());
  lane[1].stats.sum_sq = 1;

  reference[0].stats.source_zero = 40;  // a mask: of the 60 numbers that are not zero, the
  reference[4].stats.source_zero = 60;  // softmax makes zeros
  CHECK(found(plain_sum()).empty());
  reference[4].stats.source_zero = 59;
  CHECK(found(plain_sum()).size() == 1);

  set_energies(lane, {1e16, 1, 1e16, 1e16, 100});  // FP32 would lose it, too
  CHECK(found(plain_sum()).empty());
}

TEST_CASE("additions: a buffer that no longer moves and is wrong; gradients that no longer grow") {
  const SiteTable sites = chain();
  std::vector<UpdateRecord> updates = no_updates();
  updates[0] = {true, {.stagnant = 90, .count = 100, .update_sq = 1, .stagnant_sq = 0.5}};
  std::vector<SiteRecord> lane = clean_step();
  const auto found = [&] { return found_in(lane, clean_step(), updates); };
  CHECK(found().empty());  // it does not move because it has arrived
  lane[0].error.err_sq = 1.1 * kEnergyLimit * lane[0].error.ref_sq;
  REQUIRE(found().size() == 1);
  CHECK(found()[0].kind == FindingKind::kSwamping);
  CHECK(found()[0].site == 0);
  CHECK(found()[0].share == 0.5);
  Policy stochastic = find_policy("pure-fp16");
  stochastic.rounding = Rounding::kStochastic;
  ShareTally tally(1, sites, chain_formats());
  tally.add(0, false, false, with(lane, updates), clean_step());
  CHECK(find_swamped_sums(tally, find_policy("pure-fp16"), {}, {}).size() == 1);
  CHECK(find_swamped_sums(tally, stochastic, {}, {}).empty());
  // One ulp alone takes it about as far.
  const std::vector<double> of_twin(5, 1.2 * kEnergyLimit / kTwinTimes);
  CHECK(find_swamped_sums(tally, find_policy("pure-fp16"), {}, {}, of_twin).empty());
  updates[0].stats.stagnant_sq = 0.09;
  CHECK(found().empty());

  std::swap(updates[0], updates[3]);  // a weight gradient
  lane[0].error.err_sq = 0;
  updates[3].stats.stagnant_sq = 0.2;
  REQUIRE(found().size() == 1);
  CHECK(found()[0].site == 3);
  CHECK(found()[0].backward);
}

// As real site tables are: an op's output is fed by its operands, and these by outputs.
SiteTable weight_gradient() {
  SiteTable table = chain();
  table.sites[0] = testing::site(0, "fc1", "linear", Role::kActivation, {});
  table.sites[1] = testing::site(1, "fc2", "linear_backward_input", Role::kGradActivation, {});
  table.sites[2] = testing::site(2, "fc1", "linear_backward_weight", Role::kGradActivation, {1});
  table.sites[3] = testing::site(3, "fc1", "linear_backward_weight", Role::kGradWeight, {0, 2});
  table.sites[2].point = Point::kOperand;
  table.sites[2].node = table.sites[3].node;
  return table;
}

TEST_CASE("underflow: little of the gradient, but most of the weight gradient made from it") {
  for (const size_t rounded : {1, 2}) {  // where the gradient is made, or in the operand's cast
    CAPTURE(rounded);
    for (const double share : {0.1 * kEnergyLimit, 1.1 * kEnergyLimit}) {
      std::vector<SiteRecord> lane = clean_step();
      const auto found = [&] {
        return found_in(lane, clean_step(), no_updates(), "pure-fp16", {}, weight_gradient());
      };
      lane[rounded].stats.to_zero = 50;
      lane[rounded].stats.round_err_sq = share * lane[rounded].stats.sum_sq;
      for (const size_t i : {size_t{2}, rounded})
        lane[i].error.err_sq = share * lane[i].error.ref_sq;
      CHECK(found().size() == (share >= kEnergyLimit));
      lane[3].error.err_sq = 0.25 * lane[3].error.ref_sq;
      REQUIRE(found().size() == 1);
      const Finding f = found().front();
      CHECK(f.kind == FindingKind::kUnderflow);
      CHECK(f.site == static_cast<int32_t>(rounded));
      CHECK(f.share == doctest::Approx(share));
      CHECK(f.spoilt == 3);
      CHECK(f.spoilt_error == doctest::Approx(0.5));
      if (share >= kEnergyLimit) continue;
      lane[0].error.err_sq = 0.25 * lane[0].error.ref_sq;  // the activation brings the error
      CHECK(found().empty());
      lane[0].error.err_sq = 0;
      lane[2].error.err_sq =
          0.5 * lane[2].error.ref_sq;  // the gradient is wrong for another reason
      CHECK(found().empty());
    }
  }
}

TEST_CASE("underflow: a single large batch that lowered the scale of the values is named") {
  const auto found = [](double factor, double scale_after) {
    const SiteTable sites = chain();
    ShareTally tally(1, sites, chain_formats());
    for (int64_t step = 0; step < 6; ++step) {
      std::vector<SiteRecord> lane = clean_step(), reference = clean_step();
      if (step == 2) reference[2].stats.abs_max = factor;
      if (step > 2) {
        lane[2].scale = scale_after;
        lane[2].stats.to_zero = 50;
        lane[2].stats.round_err_sq = 0.5 * lane[2].stats.sum_sq;
      }
      tally.add(step, false, false, lane, reference);
    }
    const std::vector<Finding> all = find_lost_shares(tally, find_policy("pure-fp16"));
    REQUIRE(all.size() == 1);
    return all[0].outlier_step;
  };
  CHECK(found(kOutlierTimes, 1 / kOutlierTimes) == 2);
  CHECK(found(kOutlierTimes / 2, 1 / kOutlierTimes) == -1);  // not that large
  CHECK(found(kOutlierTimes, 1) == -1);                      // the scale did not follow
}

}  // namespace
}  // namespace lockstep
