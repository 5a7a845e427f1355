// Checkpoints and resuming: an interrupted run ends with the bits of one that was never stopped.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "src/record/run/checkpoint.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"
#include "tests/record/run/synthetic_run.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

// As Ctrl-C ends a run: a checkpoint, then on_finish. `clean` false: as if killed after a step.
void record_part(const SyntheticRun& run, const std::string& path, int64_t stop_after, bool clean) {
  RunFileWriter writer(path, "", false);
  if (clean) return run.drive(writer, 0, stop_after);
  writer.on_start(run.description);
  for (int64_t k = 0; k < stop_after; ++k) {
    writer.on_step(run.step(k));
    if ((k + 1) % run.options.eval_every == 0) writer.on_evaluation(run.evaluation(k + 1));
    if ((k + 1) % run.options.checkpoint_every == 0) {
      const RunState now = run.state(k + 1);
      writer.on_checkpoint(view_of(now));
    }
  }
}

std::string resume_error(const SyntheticRun& run, const std::string& path) {
  return error_of([&] { run.resume(path); });
}

}  // namespace

TEST_CASE("an interrupted run ends as one that was never stopped") {
  const TemporaryFolder folder;
  const SyntheticRun run(130);
  run.record(folder.file("whole.h5"));
  for (const int64_t stop : {0, 1, 24, 25, 49, 50, 51, 99, 113, 130}) {
    for (const bool clean : {false, true}) {
      CAPTURE(stop);
      CAPTURE(clean);
      const std::string path = folder.file(fmt::format("part{}{}.h5", stop, clean));
      record_part(run, path, stop, clean);
      CHECK(RunFile(path, true).steps() == stop);
      if (clean) CHECK(RunFile(path, true).total_histogram_steps(0) == stop);
      run.resume(path);
      CHECK(problem_of(path, run, 130) == "");
      CHECK(differing_datasets(folder.file("whole.h5"), path) == std::vector<std::string>{});
    }
  }
}

TEST_CASE("a resumed run that is stopped while it recomputes keeps the record") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(80);
  record_part(run, path, 73, true);
  fs::remove(path + ".state");  // leaves the checkpoint of step 50
  REQUIRE(read_checkpoint(path, 73)->steps_done == 50);
  {
    const auto writer = RunFileWriter::resume(path, 50);
    run.drive(*writer, 50, 60);
  }
  CHECK(RunFile(path).total_histogram_steps(0) == 73);
  CHECK(problem_of(path, run, 73) == "");
}

TEST_CASE(
    "a checkpoint restores the state bit by bit, and the newest that is not past the record") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(60);
  run.record(path);
  CHECK(read_checkpoint(path, 60)->steps_done == 60);
  CHECK(read_checkpoint(path, 59)->steps_done == 50);
  CHECK_FALSE(read_checkpoint(path, 49).has_value());  // only two are kept
  CHECK_FALSE(read_checkpoint(folder.file("other.h5"), 60).has_value());
  const RunState read = *read_checkpoint(path, 60), written = run.state(60);
  REQUIRE(read.lanes.size() == written.lanes.size());
  for (size_t l = 0; l < read.lanes.size(); ++l) {
    CHECK(read.lanes[l].scalers == written.lanes[l].scalers);
    CHECK(read.lanes[l].optimizer_steps == written.lanes[l].optimizer_steps);
    CHECK(read.lanes[l].died_of == written.lanes[l].died_of);
    CHECK(read.lanes[l].died_at == written.lanes[l].died_at);
    CHECK(read.lanes[l].nonfinite_since == written.lanes[l].nonfinite_since);
    REQUIRE(read.lanes[l].tensors.size() == written.lanes[l].tensors.size());
    for (const auto& [name, tensor] : written.lanes[l].tensors) {
      REQUIRE(read.lanes[l].tensors.contains(name));
      CHECK(read.lanes[l].tensors.at(name).shape() == tensor.shape());
      CHECK(read.lanes[l].tensors.at(name).same_bits(tensor));
    }
  }
}

TEST_CASE("a damaged checkpoint is named") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  SyntheticRun(60).record(path);
  fs::resize_file(path + ".state", 1000);
  const std::string message = error_of([&] { read_checkpoint(path, 60); });
  CHECK(message.find("has 0 bytes after its block of 4096") != std::string::npos);
  CHECK(message.find("remove it to continue from the previous checkpoint") != std::string::npos);
}

TEST_CASE("a recomputed step with other bits is refused; the error names step, lane and site") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(40);
  record_part(run, path, 35, false);
  const auto writer = RunFileWriter::resume(path, 25);
  writer->on_start(run.description);
  writer->on_step(run.step(25));
  StepRecord other_loss = run.step(26);
  other_loss.lanes[1].loss *= 2;
  CHECK(error_of([&] {
          writer->on_step(other_loss);
        }).find("step 26, lane half/way%.toml: recomputed loss ") != std::string::npos);
  StepRecord step = run.step(26);
  step.lanes[1].sites[2].stats.bits_hash ^= 1;
  const std::string message = error_of([&] { writer->on_step(step); });
  CAPTURE(message);
  CHECK(message.find("step 26, lane half/way%.toml, site '" + run.sites.sites[2].label()) !=
        std::string::npos);
}

TEST_CASE("a file of another run is not continued") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  const SyntheticRun run(40);
  record_part(run, path, 30, false);
  SUBCASE("options: every difference is listed") {
    SyntheticRun other(40);
    other.options.batch = 7;
    other.options.optimizer.values["lr"] = 0.5;
    const std::string message = resume_error(other, path);
    CHECK(message.find("batch: 64 in the file, 7 now") != std::string::npos);
    CHECK(message.find("optimizer/lr: 0.05 in the file, 0.5 now") != std::string::npos);
  }
  SUBCASE("policy") {
    SyntheticRun other(40);
    other.description.lanes[1].policy.text += "# changed";
    CHECK(resume_error(other, path).find("different text") != std::string::npos);
  }
  SUBCASE("the preset that a policy extends") {
    SyntheticRun other(40);
    other.description.lanes[1].policy.extends_hash ^= 1;
    CHECK(resume_error(other, path).find("its policy extends differs") != std::string::npos);
  }
  SUBCASE("graph") {
    SyntheticRun other(40);
    other.graph.nodes[0].layer = "elsewhere";
    CHECK(resume_error(other, path).find("step graph") != std::string::npos);
  }
  SUBCASE("sites") {
    SyntheticRun other(40);
    other.sites.sites[1].point = Point::kAccumulator;
    CHECK(resume_error(other, path).find("site 1") != std::string::npos);
  }
  SUBCASE("data") {
    SyntheticRun other(40);
    other.description.data = "mnist";
    CHECK(resume_error(other, path).find("data set") != std::string::npos);
  }
  SUBCASE("the checkpoint") {
    SyntheticRun other(40);
    other.options.seed = 2;
    other.record(folder.file("other.h5"));
    fs::rename(folder.file("other.h5.state.1"), path + ".state");  // also after 25 steps
    // It was left by another run: this one continues from its own, or from step 0.
    const RunFile before(path, true);
    CHECK(read_checkpoint(path, 40, RunFile(folder.file("other.h5")).identity()).has_value());
    CHECK_FALSE(read_checkpoint(path, before.steps(), before.identity()).has_value());
    CHECK(error_of([&] { RunFileWriter::resume(path, 25); }).find("no checkpoint after 25 steps") !=
          std::string::npos);
  }
  CHECK(problem_of(path, run, 30) == "");  // after every refusal the file is unchanged
}

}  // namespace lockstep::test
