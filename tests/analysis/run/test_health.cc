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
  std::vector<SiteRecord> c = clean_step();
  c[3].stats.source_zero = 60;
  c[3].stats.to_zero = 10;
  tally.add(0, true, c, nonfinite_counts(c));
  c[3].stats.to_zero = 30;
  c[1].stats.to_infinity = 5;
  tally.add(1, true, c, nonfinite_counts(c));
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
  std::vector<SiteRecord> c = clean_step();
  c[2].stats.count = 0;
  tally.add(0, true, c, nonfinite_counts(c));
  CHECK(tally.sites()[2].steps == 0);
  CHECK(layer_health(table(), tally.sites()).size() == 3);  // fc1 act, fc2 act, fc1 gradients
}

TEST_CASE("the worst site represents its layer and role") {
  HealthTally tally(5);
  std::vector<SiteRecord> c = clean_step();
  c[3].stats.to_zero = 10;
  c[4].stats.to_zero = 20;
  tally.add(0, true, c, nonfinite_counts(c));
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
  std::vector<SiteRecord> c = clean_step();
  c[1].stats.abs_max = std::numeric_limits<double>::infinity();
  CHECK(nonfinite_counts(c)[1].any());
  c[1].stats.count = 0;
  CHECK_FALSE(nonfinite_counts(c)[1].any());
}

TEST_CASE("an infinity that came in makes its site the worst of its layer") {
  HealthTally tally(5);
  std::vector<SiteRecord> c = clean_step();
  c[3].stats.to_zero = 50;
  tally.add(0, true, c, nonfinite_counts(c));
  c[4].stats.abs_max = std::numeric_limits<double>::infinity();
  tally.add(1, true, c, nonfinite_counts(c));
  CHECK(tally.sites()[4].infinite_in_rate() == 0.5);
  CHECK(tally.sites()[4].first_nonfinite_step == 1);
  CHECK_FALSE(tally.sites()[4].clean());
  CHECK(layer_health(table(), tally.sites())[3].site == 4);
}

TEST_CASE("stagnation is summed by layer") {
  std::vector<SiteRecord> step(5);
  step[3].update = {.measured = true, .stats = {.stagnant = 3, .count = 10}};
  step[4].update = {.measured = true, .stats = {.stagnant = 5, .count = 10}};
  SiteTable sites = table();
  sites.sites[3].role = sites.sites[4].role = Role::kUpdate;
  step[0] = step[4];  // a buffer
  std::vector<Stagnation> layers;
  add_updates(sites, step, layers);
  add_updates(sites, step, layers);
  REQUIRE(layers.size() == 1);
  CHECK(layers[0].layer == "fc1");
  CHECK(layers[0].rate() == 16.0 / 40);
}

}  // namespace
}  // namespace lockstep
