// The first non-finite site and the worst gradient underflow, on a table of five sites.
#include "analysis/run/first_cause.h"

#include <doctest/doctest.h>

#include <limits>

#include "tests/analysis/run/few_sites.h"

namespace lockstep {
namespace {

using testing::clean_step;
using testing::table;

TEST_CASE("the first cause is the non-finite site whose feeds are finite") {
  StepCounts c = clean_step();
  CHECK_FALSE(find_nonfinite(table(), c, 7).has_value());
  // 4 only passes on the values of 2 and 3; 3 is fed by 2.
  c.nan[4] = 1;
  c.nan[3] = 1;
  c.to_infinity[2] = 3;
  const auto cause = find_nonfinite(table(), c, 7);
  REQUIRE(cause.has_value());
  CHECK(cause->site == 2);
  CHECK(cause->step == 7);
  CHECK(cause->to_infinity == 3);
  CHECK(cause->feeds_finite);
}

TEST_CASE("execution order alone does not make a cause") {
  // Site 0 is non-finite because of site 4 (a weight carried over); site 4 is the cause.
  SiteTable sites = table();
  sites.sites[0].feeds = {4};
  StepCounts c = clean_step();
  c.nan[0] = 1;
  c.to_infinity[4] = 1;
  CHECK(find_nonfinite(sites, c, 0)->site == 4);
}

TEST_CASE("gradient underflow: the worst gradient site, if it reaches the notable rate") {
  HealthTally tally(5);
  StepCounts c = clean_step();
  c.to_zero[0] = 90;  // an activation: not a gradient
  c.to_zero[3] = 1;   // exactly kNotableUnderflowRate
  tally.add(0, c);
  const auto cause = worst_gradient_underflow(table(), tally.sites());
  REQUIRE(cause.has_value());
  CHECK(cause->site == 3);
  HealthTally less(5);
  c.to_zero[3] = 0;
  less.add(0, c);
  CHECK_FALSE(worst_gradient_underflow(table(), less.sites()).has_value());
}
TEST_CASE("if every non-finite site is fed by another, the first one is named as such") {
  SiteTable sites = table();
  sites.sites[0].feeds = {1};  // 0 and 1 feed each other, as weights carried over do
  StepCounts c = clean_step();
  c.nan[0] = 2;
  c.nan[1] = 1;
  const auto cause = find_nonfinite(sites, c, 3);
  REQUIRE(cause.has_value());
  CHECK(cause->site == 0);
  CHECK(cause->nan == 2);
  CHECK(cause->count == 100);
  CHECK_FALSE(cause->feeds_finite);
}

TEST_CASE("an infinity that entered a site counts as much as one that left it") {
  StepCounts c = clean_step();
  c.abs_max[3] = std::numeric_limits<double>::infinity();
  CHECK(find_nonfinite(table(), c, 0)->site == 3);
}

TEST_CASE("scaled accumulators are gradients, others are not") {
  SiteTable sites = table();
  sites.sites[1] = testing::site(1, "fc2", Role::kAccumulator, {0});
  HealthTally tally(5);
  StepCounts c = clean_step();
  c.to_zero[1] = 50;
  tally.add(0, c);
  CHECK_FALSE(worst_gradient_underflow(sites, tally.sites()).has_value());
  sites.sites[1].scaled = true;
  const auto cause = worst_gradient_underflow(sites, tally.sites());
  REQUIRE(cause.has_value());
  CHECK(cause->site == 1);
  CHECK(cause->to_zero == 50);
  CHECK(cause->nonzero == 100);
  CHECK(cause->worst_step == 0);
  CHECK(cause->worst_step_rate == 0.5);
}

}  // namespace
}  // namespace lockstep
