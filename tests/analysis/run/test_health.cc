// Sums of counts and the worst site of a layer, on tables of a few sites.
#include "analysis/run/health.h"

#include <doctest/doctest.h>

#include <limits>

#include "tests/analysis/run/few_sites.h"

namespace lockstep {
namespace {

using testing::clean_step;
using testing::table;

TEST_CASE("rates are shares of the values that were not zero") {
  HealthTally tally(5);
  StepCounts c = clean_step();
  c.source_zero[3] = 60;
  c.to_zero[3] = 10;
  tally.add(0, c);
  c.to_zero[3] = 30;
  c.to_infinity[1] = 5;
  tally.add(1, c);
  const SiteHealth& h = tally.sites()[3];
  CHECK(h.steps == 2);
  CHECK(h.nonzero == 80);
  CHECK(h.to_zero_rate() == 40.0 / 80);
  CHECK(h.worst_step == 1);
  CHECK(h.worst_step_rate == 30.0 / 40);
  CHECK(tally.sites()[1].nonfinite_rate() == 5.0 / 200);
  CHECK(tally.sites()[1].first_nonfinite_step == 1);
  CHECK(tally.sites()[0].clean());
  CHECK_FALSE(h.clean());
}

TEST_CASE("a site that is not measured is left out") {
  HealthTally tally(5);
  StepCounts c = clean_step();
  c.count[2] = 0;
  tally.add(0, c);
  CHECK(tally.sites()[2].steps == 0);
  CHECK(layer_health(table(), tally.sites()).size() == 3);  // fc1 act, fc2 act, fc1 gradients
}

TEST_CASE("the worst site represents its layer and role") {
  HealthTally tally(5);
  StepCounts c = clean_step();
  c.to_zero[3] = 10;
  c.to_zero[4] = 20;
  tally.add(0, c);
  const std::vector<LayerHealth> rows = layer_health(table(), tally.sites());
  REQUIRE(rows.size() == 4);
  const LayerHealth& row = rows[3];
  CHECK(row.layer == "fc1");
  CHECK(row.role == Role::kGradWeight);
  CHECK(row.site == 4);
  CHECK(row.worst.to_zero == 20);
  CHECK(row.measured_sites == 2);
  CHECK(row.unclean_sites == 2);
}

TEST_CASE("an infinity that came in is non-finite too, a site not measured is not") {
  StepCounts c = clean_step();
  c.abs_max[1] = std::numeric_limits<double>::infinity();
  CHECK(c.nonfinite(1));
  c.count[1] = 0;
  CHECK_FALSE(c.nonfinite(1));
}

TEST_CASE("an infinity that came in makes its site the worst of its layer") {
  HealthTally tally(5);
  StepCounts c = clean_step();
  c.to_zero[3] = 50;
  tally.add(0, c);
  c.abs_max[4] = std::numeric_limits<double>::infinity();
  tally.add(1, c);
  CHECK(tally.sites()[4].infinite_in_rate() == 0.5);
  CHECK(tally.sites()[4].first_nonfinite_step == 1);
  CHECK_FALSE(tally.sites()[4].clean());
  CHECK(layer_health(table(), tally.sites())[3].site == 4);
}

TEST_CASE("stagnation is summed by layer") {
  std::vector<UpdateRecord> updates(5);
  updates[3] = {.measured = true, .stats = {.stagnant = 3, .count = 10}};
  updates[4] = {.measured = true, .stats = {.stagnant = 5, .count = 10}};
  SiteTable sites = table();
  sites.sites[3].role = sites.sites[4].role = Role::kUpdate;
  updates[0] = updates[4];  // a buffer
  std::vector<Stagnation> layers;
  add_updates(sites, updates, layers);
  add_updates(sites, updates, layers);
  REQUIRE(layers.size() == 1);
  CHECK(layers[0].layer == "fc1");
  CHECK(layers[0].rate() == 16.0 / 40);
}

}  // namespace
}  // namespace lockstep
