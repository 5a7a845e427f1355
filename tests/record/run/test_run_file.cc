// Recorded numbers read back unchanged; which histograms are kept; the objects in the file.

#include <doctest/doctest.h>
#include <hdf5.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/graph/json.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/run/progress_snapshot.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"
#include "tests/record/run/synthetic_run.h"

namespace lockstep::test {

TEST_CASE("a run reads back as it was recorded") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(120);
  run.record(path);
  CHECK(problem_of(path, run, 120) == "");

  const RunFile file(path);
  CHECK(file.path() == path);
  CHECK(file.steps() == 120);
  CHECK(file.command_line() == "lockstep replay synthetic");
  CHECK(file.graph_json() == to_json(run.graph));
  CHECK(file.options().lanes == run.options.lanes);
  CHECK(file.options().checkpoint_every == 25);
  for (const char* key :
       {"cpu", "cpu_features", "gpu", "compiler", "compile_flags", "kernels", "threads", "hdf5"}) {
    CAPTURE(key);
    CHECK(file.environment().contains(key));
  }

  REQUIRE(file.lanes().size() == 2);
  CHECK(file.lanes()[0].name == "fp32");
  CHECK(file.lanes()[0].is_reference);
  CHECK(file.lanes()[1].name == "half/way%.toml");
  CHECK(file.lanes()[1].policy_text == "name = \"half/way%.toml\"\n");
  CHECK(file.lanes()[1].died_at == -1);
  CHECK(file.lane_index("half/way%.toml") == 1);

  REQUIRE(file.sites().sites.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const Site& read = file.sites().sites[i];
    const Site& written = run.sites.sites[i];
    CHECK(read.id == written.id);
    CHECK(read.label() == written.label());
    CHECK(read.shape == written.shape);
    CHECK(read.feeds == written.feeds);
    CHECK(read.node == written.node);
    CHECK(read.value == written.value);
    CHECK(read.scaled == written.scaled);
    CHECK(read.source_line == written.source_line);
    CHECK(read.torch_op == written.torch_op);
  }

  const std::vector<Evaluation> evaluations = file.evaluations(1);
  REQUIRE(evaluations.size() == 3);
  CHECK(evaluations[2].steps_done == 120);
  CHECK(evaluations[2].loss == 1.0 / 121);
  CHECK(file.step(1, 5).sites[1].scale == 1024);
  CHECK(file.total_histogram_steps(0) == 120);

  const UpdateRecord update = file.step(0, 7).sites[2].update;
  const UpdateStats expected = run.step(7).lanes[0].sites[2].update.stats;
  CHECK(update.measured);
  CHECK(update.stats.stagnant == expected.stagnant);
  CHECK(update.stats.update_sq == expected.update_sq);
  CHECK_FALSE(file.step(0, 7).sites[1].update.measured);
}

TEST_CASE("every histogram sums to the count of its site and step") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(60);
  run.record(path);
  const RunFile file(path);
  for (int lane = 0; lane < 2; ++lane) {
    const std::vector<int64_t> steps = file.histogram_steps(lane);
    for (const int64_t step : steps) {
      for (const SiteRecord& site : file.step(lane, step).sites) {
        uint64_t sum = 0;
        for (const uint64_t bin : site.stats.exponent_histogram) sum += bin;
        CHECK(sum == site.stats.count);
      }
    }
    uint64_t total = 0, counted = 0;
    for (const uint64_t bin : file.total_histogram(lane)) total += bin;
    for (int64_t k = 0; k < 60; ++k) {
      for (const SiteRecord& site : file.step(lane, k).sites) counted += site.stats.count;
    }
    CHECK(total == counted);
    CHECK(total > 0);
  }
}

TEST_CASE("each lane keeps the first 20 histograms, every 10th, and those of its own skips") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(70);
  run.record(path);
  std::vector<int64_t> expected;
  for (int64_t k = 0; k < 20; ++k) expected.push_back(k);
  for (const int64_t k : {20, 30, 40, 50, 60}) expected.push_back(k);
  const RunFile file(path);
  CHECK(file.histogram_steps(0) == expected);
  expected = {};
  for (int64_t k = 0; k < 20; ++k) expected.push_back(k);
  for (const int64_t k : {20, 30, 32, 40, 50, 60, 65}) expected.push_back(k);  // 33rd, 66th: skips
  CHECK(file.histogram_steps(1) == expected);
}

TEST_CASE("a site with a non-finite value keeps its step's histogram") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(30);
  {
    RunFileWriter writer(path, "", false);
    writer.on_start(run.description);
    for (int64_t k = 0; k < 30; ++k) {
      StepRecord step = run.step(k);
      if (k == 25) step.lanes[0].sites[1].stats.to_infinity = 1;
      writer.on_step(step);
    }
    writer.on_finish();
  }
  const RunFile file(path);
  CHECK(file.histogram_steps(0).back() == 25);
  CHECK(file.histogram_steps(1).back() == 20);
}

TEST_CASE("a site that a lane lacks has count 0 and NaN moments") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(3);
  run.record(path);
  const RunFile file(path);
  CHECK_FALSE(file.step(1, 2).sites[0].measured);
  CHECK(file.step(1, 2).sites[1].measured);
  CHECK(file.numbers_at(1, quantity_of(&TensorStats::count), 2).integers[0] == 0);
  CHECK(file.numbers_at(1, quantity_of(&TensorStats::bits_hash), 2).integers[0] == 0);
  for (const Quantity& quantity : quantities()) {
    if (quantity.statistic == nullptr || quantity.is_counted()) continue;
    const std::vector<double> moments = file.numbers_at(1, quantity, 2).reals;
    CHECK(std::isnan(moments[0]));
    CHECK_FALSE(std::isnan(moments[1]));
  }
}

TEST_CASE("a lane whose groups skip on their own has a column for each after the scaler's") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun run(2 * kSkipEvery);
  run.options.groups.resize(1);
  run.options.groups[0] = {"act", run.options.optimizer};
  run.description.lanes[1].policy.loss_scale_use.skip_by_group = true;
  run.record(path);
  const RunFile file(path);
  CHECK(file.step(0, 0).scalers.size() == 1);
  REQUIRE(file.step(1, 0).scalers.size() == 3);
  CHECK_THROWS_WITH_AS(file.scalers(1, 3), doctest::Contains("at most 2"), InputError);
  for (const int64_t step : {kSkipEvery - 1, 2 * kSkipEvery - 1}) {
    const auto at = static_cast<size_t>(step);
    CHECK(file.scalers(1)[at].skipped);
    CHECK(file.scalers(1, 1)[at].skipped == (step % 2 == 0));
    CHECK(file.scalers(1, 2)[at].skipped == (step % 2 != 0));
    CHECK(file.scalers(1, 2)[at].scale == 1024);
  }
}

TEST_CASE(
    "a lane with a scaler per loss names them, and has a column for each before the groups'") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun run(2 * kSkipEvery);
  run.options.groups.resize(1);
  run.options.groups[0] = {"act", run.options.optimizer};
  run.description.lanes[1].policy.loss_scale_use.skip_by_group = true;
  run.description.lanes[1].scaler_losses = {"box", "class"};
  run.record(path);
  const RunFile file(path);
  CHECK(file.lanes()[0].scaler_losses.empty());
  CHECK(file.lanes()[0].scaler_count() == 1);
  REQUIRE(file.lanes()[1].scaler_losses.size() == 2);
  CHECK(file.lanes()[1].scaler_losses[0] == "box");
  CHECK(file.lanes()[1].scaler_losses[1] == "class");
  REQUIRE(file.step(1, 0).scalers.size() == 4);
  const auto at = static_cast<size_t>(kSkipEvery - 1);
  CHECK(file.scalers(1, 0)[at].found_inf);
  CHECK_FALSE(file.scalers(1, 1)[at].found_inf);
  CHECK(file.scalers(1, 1)[at].skipped);
  CHECK(file.scalers(1, 1)[at].scale == 4096);
  CHECK(file.scalers(1, 3)[at].skipped == (at % 2 != 0));
  const auto json = nlohmann::json::parse(read_text_file(path + ".progress.json"));
  CHECK(json["lanes"][1]["loss_scale"]["class"] == 4096);
  CHECK(json["lanes"][0]["loss_scale"] == 1024);
}

TEST_CASE("a dead lane has rows, but no numbers in them") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun run(12);
  run.died_after = 6;
  run.record(path);
  const RunFile file(path);
  CHECK(file.lanes()[0].died_at == -1);
  CHECK(file.lanes()[1].died_at == 7);  // the first step that it did not run
  CHECK(file.lanes()[0].died_of == DeathCause::kAlive);
  CHECK(file.lanes()[1].died_of == DeathCause::kLossScaler);
  CHECK(file.loss(1).size() == 12);
  CHECK(std::isfinite(file.loss(1)[6]));
  CHECK(std::isnan(file.loss(1)[7]));
  CHECK_FALSE(file.step(1, 7).alive);
  CHECK(file.step(1, 7).sites[1].stats.count == 0);
  CHECK(file.histogram_steps(1).back() == 6);
}

TEST_CASE("the same run twice gives the same datasets, another run does not") {
  const TemporaryFolder folder;
  const SyntheticRun run(40);
  run.record(folder.file("a.h5"));
  run.record(folder.file("b.h5"));
  CHECK(differing_datasets(folder.file("a.h5"), folder.file("b.h5")).empty());
  SyntheticRun other(40);
  other.died_after = 39 - 1;
  other.record(folder.file("c.h5"));
  CHECK(differing_datasets(folder.file("a.h5"), folder.file("c.h5")).size() > 5);
}

TEST_CASE("no object carries a time stamp") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun(2).record(path);
  const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "open");
  int64_t stamped = 0;
  const auto look = [](hid_t, const char*, const H5O_info_t* info, void* out) -> herr_t {
    if (info->atime || info->mtime || info->ctime || info->btime) ++*static_cast<int64_t*>(out);
    return 0;
  };
  H5Ovisit2(file.id(), H5_INDEX_NAME, H5_ITER_INC, look, &stamped, H5O_INFO_TIME);
  CHECK(stamped == 0);
}

TEST_CASE("h5dump opens a run file") {
  if (std::system("command -v h5dump > /dev/null") != 0) {
    MESSAGE("SKIPPED: 1 test, h5dump is not installed");
    return;
  }
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun(55).record(path);
  CHECK(std::system(("h5dump " + path + " > " + folder.file("dump")).c_str()) == 0);
  CHECK(read_text_file(folder.file("dump")).find("exponent_histogram_50") != std::string::npos);
}

TEST_CASE("the progress snapshot shows how far the run is") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun(9).record(path);
  const auto json = nlohmann::json::parse(read_text_file(path + ".progress.json"));
  CHECK(json["state"] == "finished");
  CHECK(json["steps_done"] == 9);
  CHECK(json["steps"] == 9);
  CHECK(json["lanes"][1]["name"] == "half/way%.toml");
  CHECK(json["lanes"][1]["loss_scale"] == 1024);
  CHECK(json["course"].size() == 9);
  CHECK(json["lanes"][0]["losses"].size() == 9);
  CHECK(json["lanes"][0]["losses"][8] == json["lanes"][0]["loss"]);
  CHECK(json["lanes"][1]["skipped_steps"] == 0);
  CHECK(json["process"]["id"] == getpid());
  SyntheticRun(9).resume(path);  // no step is left: the snapshot is kept
  CHECK(nlohmann::json::parse(read_text_file(path + ".progress.json")) == json);
}

TEST_CASE("a resumed run goes on with the snapshot's courses and counts") {
  const TemporaryFolder folder;
  const std::string whole = folder.file("whole.h5"), path = folder.file("run.h5");
  constexpr int64_t kSteps = 80, kStop = 70;
  SyntheticRun run(kSteps);
  run.record(whole);
  {
    RunFileWriter writer(path, "lockstep replay synthetic", false);
    run.drive(writer, 0, kStop);
  }
  run.resume(path);
  auto expected = nlohmann::json::parse(read_text_file(whole + ".progress.json"));
  const auto json = nlohmann::json::parse(read_text_file(path + ".progress.json"));
  CHECK(json["course"].size() == kSteps);
  CHECK(json["course"] == expected["course"]);
  CHECK(json["lanes"] == expected["lanes"]);
  CHECK(json["lanes"][1]["skipped_steps"] == kSteps / kSkipEvery);
}

TEST_CASE("the snapshot's courses stay short, however long the run is") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  constexpr int64_t kSteps = 2 * kSnapshotSteps + 1;
  SyntheticRun(kSteps).record(path);
  const auto json = nlohmann::json::parse(read_text_file(path + ".progress.json"));
  const std::vector<int64_t> course = json["course"];
  CHECK(course.size() == kSnapshotSteps / 2 + 1);
  for (size_t i = 0; i < course.size(); ++i) CHECK(course[i] == static_cast<int64_t>(4 * i));
  CHECK(json["lanes"][1]["losses"].size() == course.size());
  CHECK(json["lanes"][1]["losses"].back() == json["lanes"][1]["loss"]);  // of step 800
  REQUIRE(json["lanes"][1]["skips"].size() == kSnapshotSkips);
  CHECK(json["lanes"][1]["skips"].back()["step"] == kSteps / kSkipEvery * kSkipEvery - 1);
  CHECK(json["lanes"][1]["skipped_steps"] == kSteps / kSkipEvery);
}

TEST_CASE("a run file returns the texts of its policy files for a resumed run") {
  const TemporaryFolder folder;
  SyntheticRun(2).record(folder.file("run.h5"));
  const RunFile run(folder.file("run.h5"));
  const std::map<std::string, std::string> expected = {
      {"half/way%.toml", "name = \"half/way%.toml\"\n"}};
  CHECK(run.options().policy_texts == expected);
}

}  // namespace lockstep::test
