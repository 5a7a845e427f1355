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

// A lane's step and the reference's.
struct Reading {
  std::vector<SiteRecord> lane = clean_step(), reference = clean_step();
  Reading() {
    for (SiteRecord& site : lane) {
      site.stats.sum_sq = 100;
      site.stats.round_err_sq = 1e-6;
    }
    for (SiteRecord& site : reference) site.stats.sum_sq = 100;
  }
  void add_to(StepMapTally& tally, int64_t step) const {
    tally.add(step, lane, reference, nonfinite_counts(lane));
  }
};

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
  Reading().add_to(tally, 0);
  CHECK(tally.map().grids.empty());
  CHECK(tally.map().layers == std::vector<std::string>{"fc1", "fc2"});
}

TEST_CASE("a cell shows the worst site of its layer and role") {
  const SiteTable sites = table();
  Reading reading;
  reading.lane[3].stats.source_zero = reading.lane[4].stats.source_zero = 20;
  reading.lane[3].stats.to_zero = 8;
  reading.lane[4].stats.to_zero = 16;
  reading.lane[4].stats.round_err_sq = 25;
  StepMapTally tally(sites, 1);
  reading.add_to(tally, 0);
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
  Reading reading;
  reading.lane[0].stats.round_err_sq = 30;
  StepMapTally tally(sites, 1);
  reading.add_to(tally, 0);
  CHECK(grid_of(tally.map(), Role::kActivation, "zeroed energy") == nullptr);
}

TEST_CASE("an infinity that came in counts as at least one value") {
  const SiteTable sites = table();
  Reading reading;
  reading.lane[1].stats.abs_max = std::numeric_limits<double>::infinity();
  reading.lane[0].stats.to_infinity = 7;
  StepMapTally tally(sites, 1);
  reading.add_to(tally, 0);
  const StepMap map = tally.map();
  const StepGrid* bad = grid_of(map, Role::kActivation, "not finite");
  REQUIRE(bad != nullptr);
  REQUIRE(bad->cells.size() == 2);
  CHECK(bad->cells[0].share == 7.0 / 100);
  CHECK(bad->cells[1].share == 1.0 / 100);
}

TEST_CASE("only gradients vanish, and only where the reference has one") {
  const SiteTable sites = table();
  Reading reading;
  for (const size_t i : {0, 2, 3}) {  // an activation, two gradients
    reading.lane[i].stats.source_zero = 100;
  }
  reading.reference[3].stats.sum_sq = 0;
  StepMapTally tally(sites, 1);
  reading.add_to(tally, 0);
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
  Reading reading;
  reading.lane[2].update = {.measured = true, .stats = {.stagnant = 3, .count = 4}};
  reading.lane[1].decisions = {.count = 10, .flipped = 1};
  StepMapTally tally(sites, 2);
  reading.add_to(tally, 0);
  CHECK(grid_of(tally.map(), Role::kAccumulator, "swamped") == nullptr);  // not sampled
  reading.lane[0].health = {.addends = 8, .swamped = 6};
  reading.add_to(tally, 1);
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
    Reading reading;
    reading.lane[0].stats.to_zero = step == 100 ? 50 : step == 99 ? 5 : 0;
    reading.add_to(tally, step);
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
