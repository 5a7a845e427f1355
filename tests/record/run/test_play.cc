// A run that is read back gives the records that training gave.
#include "src/record/run/play.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/record/run/quantity_rows.h"
#include "tests/record/run/synthetic_run.h"

namespace lockstep::test {
namespace {

// Every column that a run of these lanes has.
std::vector<QuantityColumn> columns_of(const LaneStep& step) {
  std::vector<QuantityColumn> columns;
  for (const Quantity& quantity : quantities()) {
    if (quantity.is_checksum() || quantity.axis == Axis::kLoss) continue;
    QuantityColumn column{.quantity = &quantity};
    if (quantity.axis == Axis::kSite) column.width = std::ssize(step.sites);
    if (quantity.axis == Axis::kScaler) column.width = std::ssize(step.scalers);
    if (quantity.axis == Axis::kGroup) column.width = std::ssize(step.lr);
    columns.push_back(column);
  }
  return columns;
}

void check_equal(const std::vector<QuantityRow>& written, const std::vector<QuantityRow>& read) {
  REQUIRE(written.size() == read.size());
  for (size_t i = 0; i < written.size(); ++i) {
    CAPTURE(written[i].column().quantity->name);
    const size_t bytes = written[i].bytes();
    REQUIRE(read[i].bytes() == bytes);
    CHECK((bytes == 0 || std::memcmp(written[i].data(), read[i].data(), bytes) == 0));
  }
}

// Compares what is played with what was told.
class Comparison : public Observer {
 public:
  explicit Comparison(const SyntheticRun& run) : run_(run) {}
  void on_step(const StepRecord& read) override {
    CAPTURE(read.step);
    CHECK(read.step == steps++);
    const StepRecord written = run_.step(read.step);
    CHECK(read.is_measured == written.is_measured);
    REQUIRE(read.lanes.size() == written.lanes.size());
    for (size_t lane = 0; lane < read.lanes.size(); ++lane) {
      CAPTURE(lane);
      compare(written.lanes[lane], read.lanes[lane], read.step);
    }
  }
  void on_evaluation(const EvaluationRecord& read) override {
    const EvaluationRecord written = run_.evaluation(read.steps_done);
    CHECK(steps == read.steps_done);
    CHECK(read.loss == written.loss);
    CHECK(read.accuracy == written.accuracy);
    CHECK(read.example_count == written.example_count);
    ++evaluations;
  }
  void on_finish() override { has_finished = true; }

  int64_t steps = 0, evaluations = 0;
  bool has_finished = false;

 private:
  void compare(const LaneStep& written, const LaneStep& read, int64_t step) const {
    REQUIRE(read.alive == written.alive);
    CHECK(read.died_of == written.died_of);
    if (!read.alive) {
      for (const SiteRecord& site : read.sites) CHECK_FALSE(site.measured);
      return;
    }
    REQUIRE(read.sites.size() == written.sites.size());
    const std::vector<QuantityColumn> columns = columns_of(written);
    check_equal(step_rows(columns, written), step_rows(columns, read));
    if (run_.options.measuring.samples_sums(step)) {
      check_equal(sample_rows(columns, written), sample_rows(columns, read));
    }
    for (size_t s = 0; s < read.sites.size(); ++s) {
      CAPTURE(s);
      CHECK(read.sites[s].measured == written.sites[s].measured);
      CHECK(read.sites[s].counted == written.sites[s].counted);
      CHECK(read.sites[s].update.measured == written.sites[s].update.measured);
    }
  }

  const SyntheticRun& run_;
};

}  // namespace

TEST_CASE("played steps and evaluations are those that were told, also of a lane that died") {
  const TemporaryFolder folder;
  for (const int64_t died_after : {int64_t{-1}, int64_t{6}}) {
    SyntheticRun run(70);
    if (died_after >= 0) run.died_after = died_after;
    const std::string path = folder.file(std::to_string(died_after) + ".h5");
    run.record(path);
    Comparison comparison(run);
    play(RunFile(path), comparison);
    CHECK(comparison.steps == 70);
    CHECK(comparison.evaluations > 0);
    CHECK(comparison.has_finished);
  }
}

TEST_CASE("evaluations are played back, the one before the first step included") {
  const TemporaryFolder folder;
  const SyntheticRun run(1);
  {
    RunFileWriter writer(folder.file("run.h5"), "lockstep replay synthetic", false);
    writer.on_start(run.description);
    writer.on_evaluation(run.evaluation(0));
    writer.on_step(run.step(0));
    writer.on_evaluation(run.evaluation(1));
    writer.on_finish();
  }
  Comparison comparison(run);
  play(RunFile(folder.file("run.h5")), comparison);
  CHECK(comparison.evaluations == 2);
}

TEST_CASE("a step on its own is the same, with its histogram where the file kept one") {
  const TemporaryFolder folder;
  const SyntheticRun run(40);  // step 30 has a histogram, too
  run.record(folder.file("run.h5"));
  const RunFile file(folder.file("run.h5"));
  for (const int64_t step : {int64_t{3}, int64_t{20}, int64_t{21}}) {
    CAPTURE(step);
    const bool is_kept = step != 21;
    const LaneStep read = file.step(0, step), without = file.step(0, step, false);
    for (size_t s = 0; s < read.sites.size(); ++s) {
      const TensorStats written = run.step(step).lanes[0].sites[s].stats;
      const auto none = TensorStats().exponent_histogram;
      CHECK(read.sites[s].stats.exponent_histogram ==
            (is_kept ? written.exponent_histogram : none));
      CHECK(without.sites[s].stats.exponent_histogram == none);
    }
  }
}

TEST_CASE("effects on the loss are read of every sample") {
  const TemporaryFolder folder;
  const SyntheticRun run(70);
  run.record(folder.file("run.h5"));
  const RunFile file(folder.file("run.h5"));
  REQUIRE(file.sums_steps(0) == std::vector<int64_t>{0, 50});
  std::vector<double> written;
  for (const int64_t step : file.sums_steps(0)) {
    const StepRecord told = run.step(step);
    for (const SiteRecord& site : told.lanes[0].sites) {
      written.push_back(site.effect.rounding);
    }
  }
  CHECK(file.numbers(0, quantity_of(&LossEffect::rounding)).reals == written);
  CHECK_THROWS_AS(file.numbers(0, quantity_of(Gathered::kHistograms)), std::logic_error);
}

TEST_CASE("only the lanes that are asked for are read") {
  const TemporaryFolder folder;
  SyntheticRun(3).record(folder.file("run.h5"));
  struct First : Observer {
    int64_t steps = 0;
    void on_step(const StepRecord& step) override {
      REQUIRE(step.lanes.size() == 2);
      CHECK(step.lanes[0].sites.size() == 3);
      CHECK(step.lanes[1].sites.empty());
      ++steps;
    }
  } first;
  play_reference(RunFile(folder.file("run.h5")), first);
  CHECK(first.steps == 3);
}

}  // namespace lockstep::test
