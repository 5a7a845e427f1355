// The map of a few sites, by hand: which site a cell shows, which steps are joined.
#include "analysis/report/step_map.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/analysis/run/few_sites.h"

namespace lockstep {
namespace {

using testing::clean_step;
using testing::table;

constexpr int kSites = 5;

StepReading clean_reading() {
  StepReading reading;
  reading.counts = clean_step();
  reading.sum_sq.assign(kSites, 100);
  reading.round_err_sq.assign(kSites, 1e-6);
  reading.reference_sum_sq.assign(kSites, 100);
  reading.updates.resize(kSites);
  return reading;
}

size_t measure_named(std::string_view name) {
  for (size_t m = 0; m < step_measures().size(); ++m) {
    if (step_measures()[m].name == name) return m;
  }
  FAIL("no measure " << name);
  return 0;
}

const StepGrid* grid_of(const StepMap& map, Role role, std::string_view measure) {
  for (const StepGrid& grid : map.grids) {
    if (grid.role == role && grid.measure == measure_named(measure)) return &grid;
  }
  return nullptr;
}

TEST_CASE("a step in which nothing was lost makes no cell") {
  const SiteTable sites = table();
  StepMapTally tally(sites, 1);
  tally.add(0, clean_reading());
  CHECK(tally.map().grids.empty());
  CHECK(tally.map().layers == std::vector<std::string>{"fc1", "fc2"});
}

TEST_CASE("a cell shows the worst site of its layer and role") {
  const SiteTable sites = table();
  StepReading reading = clean_reading();
  reading.counts.source_zero[3] = reading.counts.source_zero[4] = 20;
  reading.counts.to_zero[3] = 8;
  reading.counts.to_zero[4] = 16;
  reading.round_err_sq[4] = 25;
  StepMapTally tally(sites, 1);
  tally.add(0, reading);
  const StepMap map = tally.map();
  const StepGrid* zeroed = grid_of(map, Role::kGradWeight, "zeroed");
  REQUIRE(zeroed != nullptr);
  REQUIRE(zeroed->cells.size() == 1);
  CHECK(zeroed->cells[0].share == 16.0 / 80);
  CHECK(zeroed->cells[0].site == 4);
  CHECK(map.layers[zeroed->cells[0].layer] == "fc1");
  const StepGrid* energy = grid_of(map, Role::kGradWeight, "zeroed energy");
  REQUIRE(energy != nullptr);
  CHECK(energy->cells[0].share == 0.25);
}

TEST_CASE("rounding errors where no value became zero are no lost energy") {
  const SiteTable sites = table();
  StepReading reading = clean_reading();
  reading.round_err_sq[0] = 30;
  StepMapTally tally(sites, 1);
  tally.add(0, reading);
  CHECK(grid_of(tally.map(), Role::kActivation, "zeroed energy") == nullptr);
}

TEST_CASE("an infinity that came in counts as at least one value") {
  const SiteTable sites = table();
  StepReading reading = clean_reading();
  reading.counts.abs_max[1] = std::numeric_limits<double>::infinity();
  reading.counts.to_infinity[0] = 7;
  StepMapTally tally(sites, 1);
  tally.add(0, reading);
  const StepMap map = tally.map();
  const StepGrid* bad = grid_of(map, Role::kActivation, "not finite");
  REQUIRE(bad != nullptr);
  REQUIRE(bad->cells.size() == 2);
  CHECK(bad->cells[0].share == 7.0 / 100);
  CHECK(bad->cells[1].share == 1.0 / 100);
}

TEST_CASE("only gradients vanish, and only where the reference has one") {
  const SiteTable sites = table();
  StepReading reading = clean_reading();
  reading.counts.source_zero = {100, 0, 100, 100, 0};  // an activation, two gradients
  reading.reference_sum_sq[3] = 0;
  StepMapTally tally(sites, 1);
  tally.add(0, reading);
  const StepMap map = tally.map();
  CHECK(grid_of(map, Role::kActivation, "vanished") == nullptr);
  CHECK(grid_of(map, Role::kGradWeight, "vanished") == nullptr);
  const StepGrid* gone = grid_of(map, Role::kGradActivation, "vanished");
  REQUIRE(gone != nullptr);
  CHECK(gone->cells[0].share == 1);
}

TEST_CASE("updates, decisions and sampled sums have their shares") {
  SiteTable sites = table();
  sites.sites[2].role = Role::kUpdate;
  sites.sites[0].role = Role::kAccumulator;
  StepReading reading = clean_reading();
  reading.updates[2] = {.measured = true, .stats = {.stagnant = 3, .count = 4}};
  reading.decisions.resize(kSites);
  reading.decisions[1] = {.count = 10, .flipped = 1};
  StepMapTally tally(sites, 2);
  tally.add(0, reading);
  CHECK(grid_of(tally.map(), Role::kAccumulator, "swamped") == nullptr);  // not sampled
  reading.sums.resize(kSites);
  reading.sums[0] = {.addends = 8, .swamped = 6};
  tally.add(1, reading);
  const StepMap map = tally.map();
  CHECK(grid_of(map, Role::kUpdate, "stagnant")->cells[0].share == 0.75);
  CHECK(grid_of(map, Role::kActivation, "flipped")->cells[0].share == 0.1);
  const StepGrid* swamped = grid_of(map, Role::kAccumulator, "swamped");
  REQUIRE(swamped != nullptr);
  REQUIRE(swamped->cells.size() == 1);
  CHECK(swamped->cells[0].column == 1);
  CHECK(swamped->cells[0].share == 0.75);
}

TEST_CASE("many steps are joined to columns that cover each step once; a column keeps the worst") {
  const SiteTable sites = table();
  constexpr int64_t kSteps = 2 * kMostStepColumns + 7;
  StepMapTally tally(sites, kSteps);
  for (int64_t step = 0; step < kSteps; ++step) {
    StepReading reading = clean_reading();
    reading.counts.to_zero[0] = step == 100 ? 50 : step == 99 ? 5 : 0;
    tally.add(step, reading);
  }
  const StepMap map = tally.map();
  REQUIRE(map.columns.size() == static_cast<size_t>(kMostStepColumns));
  int64_t next = 0;
  for (const auto& [first, last] : map.columns) {
    CHECK(first == next);
    CHECK(last >= first);
    next = last + 1;
  }
  CHECK(next == kSteps);
  const StepGrid* zeroed = grid_of(map, Role::kActivation, "zeroed");
  REQUIRE(zeroed != nullptr);
  double worst = 0;
  for (const StepCell& cell : zeroed->cells) {
    const auto& [first, last] = map.columns[cell.column];
    const bool covers = (first <= 100 && 100 <= last) || (first <= 99 && 99 <= last);
    CHECK(covers);
    worst = std::max(worst, cell.share);
  }
  CHECK(worst == 0.5);
}

}  // namespace
}  // namespace lockstep
