// Origins of infinities and NaN on a chain of five sites.
#include "analysis/findings/nonfinite.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "analysis/findings/finding_kinds.h"
#include "tests/analysis/findings/hand_evidence.h"

namespace lockstep {
namespace {

using testing::chain;
using testing::chain_formats;
using testing::clean_step;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<Finding> of_one_step(const SiteTable& sites, const std::vector<SiteRecord>& lane,
                                 const std::vector<SiteRecord>& reference, bool skipped = false) {
  NonfiniteOrigins origins(1, sites, chain_formats());
  origins.add(7, skipped, lane, reference);
  return origins.findings();
}

TEST_CASE("no size is expected where the reference measured none") {
  std::vector<SiteRecord> lane = clean_step(), reference = clean_step();
  lane[2].stats.to_infinity = 3;
  lane[2].stats.abs_max = kInfinity;
  lane[3].stats.nan = 1;
  reference[2] = SiteRecord();
  const auto found = of_one_step(chain(), lane, reference);
  REQUIRE(found.size() == 1);
  CHECK(std::isnan(found[0].value));
}

TEST_CASE("the origin is the site whose feeds are finite; the rest follows from it") {
  const SiteTable sites = chain();
  std::vector<SiteRecord> lane = clean_step();
  CHECK(of_one_step(sites, lane, clean_step()).empty());
  lane[2].stats.to_infinity = 3;
  lane[2].stats.abs_max = 1e5;
  lane[3].stats.nan = lane[4].stats.nan = 1;
  const auto found = of_one_step(sites, lane, clean_step());
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kOverflow);
  CHECK(found[0].site == 2);
  CHECK(found[0].first_step == 7);
  CHECK(found[0].backward);
  CHECK(found[0].value == 1e5);
  CHECK(found[0].limit == 65504);
  CHECK(found[0].consequences == std::vector<int32_t>{3});  // one for each layer
}

TEST_CASE("what the reference shows as well is not a finding") {
  const SiteTable sites = chain();
  std::vector<SiteRecord> lane = clean_step();
  lane[0].stats.abs_max = kInfinity;
  CHECK(of_one_step(sites, lane, lane).empty());
}

TEST_CASE("an infinity that its reader absorbs is a mask; one that changes the result is not") {
  const SiteTable sites = chain();
  std::vector<SiteRecord> lane = clean_step(), reference = clean_step();
  lane[0].stats.to_infinity = 10;
  lane[0].stats.abs_max = reference[0].stats.abs_max = 1e9;
  CHECK(of_one_step(sites, lane, reference).empty());
  lane[1].error.err_sq = 2 * kAbsorbedErrorShare * lane[1].error.ref_sq;
  const auto found = of_one_step(sites, lane, reference);
  REQUIRE(found.size() == 1);
  CHECK(found[0].site == 0);
}

TEST_CASE("a NaN is never absorbed") {
  const SiteTable sites = chain();
  std::vector<SiteRecord> lane = clean_step();
  lane[0].stats.nan = 1;
  const auto found = of_one_step(sites, lane, clean_step());
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kInvalid);
}

TEST_CASE(
    "an infinity formed inside an op is a sum's, or that of a pole whose operand became zero") {
  SiteTable sites = chain();
  std::vector<SiteRecord> lane = clean_step();
  lane[1].stats.abs_max = kInfinity;
  lane[2].stats.nan = 1;
  sites.sites[1].op = "exp";  // adds nothing up
  CHECK(of_one_step(sites, lane, clean_step()).at(0).kind == FindingKind::kOverflow);
  sites.sites[1].op = "linear";
  auto found = of_one_step(sites, lane, clean_step());
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kSumOverflow);
  CHECK(found[0].value == 1);  // what the reference has there
  sites.sites[1].op = "log";
  sites.sites[0] = testing::site(0, "fc1", "log", Role::kActivation, {});
  sites.sites[0].node = "n1";
  sites.sites[0].point = Point::kOperand;
  lane[0].stats.to_zero = 4;
  found = of_one_step(sites, lane, clean_step());
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kInvalid);
  CHECK(found[0].cause == 0);
}

TEST_CASE("backward overflows of skipped steps are the scaler's, forward ones are findings") {
  const SiteTable sites = chain();
  std::vector<SiteRecord> backward = clean_step();
  backward[2].stats.to_infinity = backward[3].stats.nan = 1;
  NonfiniteOrigins origins(1, sites, chain_formats());
  origins.add(0, /*skipped=*/true, backward, clean_step());
  CHECK(origins.findings().empty());
  CHECK(origins.skips_by_site()[2] == 1);
  std::vector<SiteRecord> forward = clean_step();
  forward[1].stats.to_infinity = forward[2].stats.nan = 1;
  origins.add(1, /*skipped=*/true, forward, clean_step());
  origins.add(2, /*skipped=*/true, forward, clean_step());
  REQUIRE(origins.findings().size() == 1);
  CHECK(origins.findings()[0].skipped_steps == 2);
  CHECK(origins.findings()[0].last_step == 2);
}

TEST_CASE("a skipped step with a division by what rounding made zero is a finding") {
  SiteTable sites = chain();
  sites.sites[2].op = "sqrt_backward";
  sites.sites[1] = testing::site(1, "fc2", "sqrt_backward", Role::kActivation, {});
  sites.sites[1].node = "n2";
  sites.sites[1].point = Point::kOperand;
  std::vector<SiteRecord> lane = clean_step();
  lane[2].stats.abs_max = kInfinity;
  lane[3].stats.nan = 1;
  CHECK(of_one_step(sites, lane, clean_step(), /*skipped=*/true).empty());
  lane[1].stats.to_zero = 4;
  const auto found = of_one_step(sites, lane, clean_step(), /*skipped=*/true);
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kInvalid);
  CHECK(found[0].cause == 1);
  CHECK(found[0].skipped_steps == 1);
}

TEST_CASE("optimizer state that became infinite is a kind of its own") {
  SiteTable sites = chain();
  sites.sites.push_back(testing::site(5, "fc1", "optimizer", Role::kOptimizerState, {3}));
  sites.sites[5].node = sites.sites[4].node;
  std::vector<SiteRecord> lane = clean_step(6);
  lane[4].stats.abs_max = kInfinity;  // the update, which the state made infinite
  lane[5].stats.to_infinity = 1;
  lane[5].stats.abs_max = 1e5;
  const std::vector<std::string> formats(6, "fp16");
  NonfiniteOrigins origins(1, sites, formats);
  origins.add(0, /*skipped=*/false, lane, clean_step(6));
  const auto found = origins.findings();
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kStateOverflow);
  CHECK(found[0].site == 5);
}

TEST_CASE("a weight that overflows when stored: one finding, in every step that reads it") {
  const SiteTable sites = testing::stored_chain();
  std::vector<SiteRecord> first = clean_step(4), later = clean_step(4);
  first[0].stats.to_infinity = 2;
  first[0].stats.abs_max = 1e5;
  for (std::vector<SiteRecord>* step : {&first, &later}) {
    (*step)[1].stats.abs_max = (*step)[2].stats.abs_max = kInfinity;
    (*step)[3].stats.nan = 1;
  }
  later[0].stats.count = 0;  // stored once
  NonfiniteOrigins origins(1, sites, chain_formats());
  StoredEvidence stored(sites);
  for (int64_t step = 0; step < 3; ++step) {
    StepEvidence lane(step == 0 ? first : later);
    stored.complete(lane);
    CHECK(lane[0].stats.count == 100);
    origins.add(step, /*skipped=*/false, lane, clean_step(4));
  }
  const auto found = origins.findings();
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kStorageOverflow);
  CHECK(found[0].site == 0);
  CHECK(found[0].steps == 3);
  CHECK(found[0].value == 1e5);
  CHECK(found[0].consequences == std::vector<int32_t>{3});
  // Once the weight is finite again, what else overflows is a finding of its own.
  std::vector<SiteRecord> other = clean_step(4);
  other[0].stats.count = 0;
  other[3].stats.to_infinity = 1;
  other[1].error.err_sq = other[1].error.ref_sq;  // finite, though not the reference's
  StepEvidence completed(other);
  stored.complete(completed);
  origins.add(3, /*skipped=*/false, completed, clean_step(4));
  REQUIRE(origins.findings().size() == 2);
  CHECK(origins.findings()[0].steps == 3);
  CHECK(origins.findings()[1].site == 3);
}

TEST_CASE(
    "a stored mask that is absorbed is silent; a large constant whose infinity stays is not") {
  const SiteTable sites = testing::stored_chain("c:mask", Role::kBuffer);
  const auto overflowing = [] {
    std::vector<SiteRecord> lane = clean_step(4);
    lane[0].stats.to_infinity = 10;
    lane[0].stats.abs_max = 1e9;
    lane[1].stats.abs_max = lane[2].stats.abs_max = kInfinity;
    return lane;
  };
  NonfiniteOrigins origins(1, sites, chain_formats());
  origins.add(0, false, overflowing(), clean_step(4));
  CHECK(origins.findings().empty());
  std::vector<SiteRecord> lane = overflowing();
  lane[3].error.err_sq = 2 * kAbsorbedErrorShare * lane[3].error.ref_sq;
  origins.add(1, false, lane, clean_step(4));  // other weights: the lane has moved away
  CHECK(origins.findings().empty());
  NonfiniteOrigins harmful(1, sites, chain_formats());
  harmful.add(0, false, lane, clean_step(4));
  REQUIRE(harmful.findings().size() == 1);
  CHECK(harmful.findings()[0].kind == FindingKind::kStorageOverflow);
  CHECK(harmful.findings()[0].value == 1e9);
}

TEST_CASE("an eps that became zero when stored is the cause of the division by zero") {
  // 0 eps stored -> 1 operand of an add -> 2 the sum -> 3 divisor -> 4 quotient
  SiteTable sites = testing::stored_chain("c:eps", Role::kBuffer);
  sites.sites[3] = testing::site(3, "fc1", "div", Role::kActivation, {2});
  sites.sites[3].point = Point::kOperand;
  sites.sites[3].index = 1;
  sites.sites.push_back(testing::site(4, "fc1", "div", Role::kActivation, {3}));
  sites.sites[4].node = sites.sites[3].node;
  std::vector<SiteRecord> lane = clean_step(5);
  lane[0].stats.to_zero = lane[0].stats.count;
  for (const size_t i : {1, 2, 3}) lane[i].stats.source_zero = lane[i].stats.count;
  lane[4].stats.nan = 7;
  auto found = of_one_step(sites, lane, clean_step(5));
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kInvalid);
  CHECK(found[0].site == 4);
  CHECK(found[0].cause == 0);
  lane[0].stats.to_zero = 0;  // the divisor vanished for another reason
  found = of_one_step(sites, lane, clean_step(5));
  CHECK(found.at(0).cause == 1);  // where zeros appear first
  CHECK(found.at(0).rounded == -1);
}

TEST_CASE("a difference that rounding made zero, before a pole: the rounding is named") {
  // 0 a result that was rounded -> 1 operand and 2 result of 1 - p -> 3 operand and 4 result of log
  SiteTable sites{{testing::site(0, "fc1", "linear", Role::kActivation, {}),
                   testing::site(1, "add", "add", Role::kActivation, {0}),
                   testing::site(2, "add", "add", Role::kActivation, {1}),
                   testing::site(3, "log", "log", Role::kActivation, {2}),
                   testing::site(4, "log", "log", Role::kActivation, {3})}};
  for (const size_t operand : {1, 3}) {
    sites.sites[operand].point = Point::kOperand;
    sites.sites[operand].node = sites.sites[operand + 1].node;
  }
  std::vector<SiteRecord> lane = clean_step();
  lane[0].stats.inexact = 40;
  lane[2].stats.inexact = 3;  // of other elements: zero is exact
  for (const size_t i : {2, 3}) lane[i].stats.source_zero = 2;
  lane[4].stats.abs_max = kInfinity;
  const auto found = of_one_step(sites, lane, clean_step());
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == FindingKind::kInvalid);
  CHECK(found[0].cause == 2);
  CHECK(found[0].rounded == 0);
  CHECK(row_of(found[0].kind).sentence({found[0], sites}) ==
        "log: its result becomes infinite because the result of add became zero by rounding the "
        "result of fc1 linear");
}

TEST_CASE("a pole elsewhere than at zero: rounded to 1") {
  SiteTable sites{{testing::site(0, "fc1", "linear", Role::kActivation, {}),
                   testing::site(1, "atanh", "atanh", Role::kActivation, {0}),
                   testing::site(2, "atanh", "atanh", Role::kActivation, {1})}};
  sites.sites[1].point = Point::kOperand;
  sites.sites[1].node = sites.sites[2].node;
  std::vector<SiteRecord> lane = clean_step(3), reference = clean_step(3);
  lane[0].stats.inexact = 40;
  reference[0].stats.abs_max = reference[1].stats.abs_max = 0.9999;
  lane[2].stats.abs_max = kInfinity;
  auto found = of_one_step(sites, lane, reference);
  REQUIRE(found.size() == 1);
  CHECK(found[0].cause == 1);
  CHECK(found[0].pole == 1);
  CHECK(found[0].rounded == 0);
  reference[1].stats.abs_max = 1;  // the reference is there, too
  found = of_one_step(sites, lane, reference);
  CHECK(found.at(0).cause == -1);
}

TEST_CASE("a skipped step leaves NaN in a buffer: the forward origin names it") {
  SiteTable sites = chain();
  sites.sites[1].role = Role::kBuffer;
  sites.sites.push_back(testing::site(5, "fc2", "linear", Role::kBuffer, {}));
  sites.sites[5].point = Point::kOperand;
  sites.sites[5].node = sites.sites[1].node;
  sites.sites[5].value = "b:fc2.running_mean";
  std::vector<SiteRecord> lane = clean_step(6);
  lane[0].stats.to_infinity = 1;
  lane[0].error.err_sq = lane[0].error.ref_sq;
  lane[1].stats.nan = 1;
  const std::vector<std::string> formats(6, "fp16");
  NonfiniteOrigins origins(1, sites, formats);
  origins.add(0, true, lane, clean_step(6));
  REQUIRE(origins.findings().size() == 1);
  CHECK(origins.findings()[0].spoilt_buffer == 1);
  NonfiniteOrigins taken(1, sites, formats);
  taken.add(0, false, lane, clean_step(6));
  CHECK(taken.findings().at(0).spoilt_buffer == -1);  // the weights are spoilt as well
  sites.sites[5].value = "n7";                        // a layer norm's saved statistics
  NonfiniteOrigins saved(1, sites, formats);
  saved.add(0, true, lane, clean_step(6));
  CHECK(saved.findings().at(0).spoilt_buffer == -1);
}

TEST_CASE("once an update is NaN, later steps show consequences only") {
  const SiteTable sites = chain();
  std::vector<SiteRecord> first = clean_step(), later = clean_step();
  first[4].stats.nan = 5;
  later[0].stats.nan = later[1].stats.nan = later[2].stats.nan = later[3].stats.nan =
      later[4].stats.nan = 100;
  NonfiniteOrigins origins(1, sites, chain_formats());
  origins.add(0, false, first, clean_step());
  origins.add(1, false, later, clean_step());
  REQUIRE(origins.findings().size() == 1);
  CHECK(origins.findings()[0].site == 4);
}

}  // namespace
}  // namespace lockstep
