// Runs from several seeds in one file: each is a whole run, continued from its own checkpoints.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "src/core/text_file.h"
#include "src/record/run/checkpoint.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"
#include "tests/record/run/synthetic_run.h"

namespace lockstep::test {
namespace {

constexpr int64_t kSeedSteps = 60;

// The k-th of three, from seed 9.
struct Seed : SyntheticRun {
  explicit Seed(uint64_t k) : SyntheticRun(kSeedSteps) {
    options.seeds = 3;
    options.seed = 9 + k;
  }
};

// Seeds [0, complete) whole; `part` steps of the next, with a checkpoint after `checkpoint` steps.
void record_seeds(const std::string& path, uint64_t complete, int64_t part = 0,
                  int64_t checkpoint = 0) {
  for (uint64_t k = 0; k <= complete; ++k) {
    if (k == complete && part == 0) break;
    const Seed run(k);
    std::unique_ptr<RunFileWriter> writer =
        k == 0 ? std::make_unique<RunFileWriter>(path, "lockstep replay synthetic", false)
               : RunFileWriter::add_seed(path, 9 + k);
    if (k < complete) {
      run.drive(*writer, 0, kSeedSteps);
      continue;
    }
    writer->on_start(run.description);
    for (int64_t step = 0; step < part; ++step) {
      writer->on_step(run.step(step));
      if ((step + 1) % run.options.eval_every == 0) writer->on_evaluation(run.evaluation(step + 1));
      if (step + 1 == checkpoint) {
        const RunState now = run.state(checkpoint);
        writer->on_checkpoint(view_of(now));
      }
    }
  }
}

std::optional<RunState> checkpoint_of(const std::string& path, uint64_t seed) {
  const RunFile run(path, true, seed);
  return read_checkpoint(path, run.steps(), run.identity());
}

}  // namespace

TEST_CASE("every seed reads as a whole run; without a seed, the first") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  record_seeds(path, 3);
  CHECK(RunFile(path).seeds() == std::vector<uint64_t>{9, 10, 11});  // not "10", "11", "9"
  CHECK(RunFile(path).options().seed == 9);
  CHECK(problem_of(path, Seed(0), kSeedSteps) == "");
  for (const uint64_t seed : {9, 10, 11}) {
    CAPTURE(seed);
    const RunFile run(path, false, seed);
    CHECK(run.options().seed == seed);
    CHECK(run.seeds().front() == 9);
    CHECK(run.steps() == kSeedSteps);
    CHECK(run.loss(1) == RunFile(path).loss(1));  // these synthetic runs do not use their seed
    CHECK(run.command_line() == RunFile(path).command_line());
    CHECK(run.prove().problems.empty());
  }
  CHECK(error_of([&] { RunFile(path, false, 12); }).find("no seed 12; it holds 9, 10, 11") !=
        std::string::npos);
  CHECK(error_of([&] { RunFileWriter::add_seed(path, 10); }).find("seed 10 is recorded") !=
        std::string::npos);
  const auto json = nlohmann::json::parse(read_text_file(path + ".progress.json"));
  CHECK(json["state"] == "finished");
  CHECK(json["seed_number"] == 3);
}

TEST_CASE("between two seeds the snapshot says that the run goes on") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  record_seeds(path, 2);
  const auto json = nlohmann::json::parse(read_text_file(path + ".progress.json"));
  CHECK(json["state"] == "running");
  CHECK(json["seed_number"] == 2);
  CHECK(json["seeds"] == 3);
}

TEST_CASE("an interrupted seed continues from its own checkpoint, never from another seed's") {
  const TemporaryFolder folder;
  record_seeds(folder.file("whole.h5"), 2);
  const std::string path = folder.file("run.h5");
  SUBCASE("none of its own yet: from step 0") {
    record_seeds(path, 1, 55);
    CHECK_FALSE(checkpoint_of(path, 10).has_value());
    CHECK(checkpoint_of(path, 9)->steps_done == kSeedSteps);
  }
  SUBCASE("the older file is the other seed's") {
    record_seeds(path, 1, 40, 30);
    CHECK(checkpoint_of(path, 10)->steps_done == 30);
  }
  const auto state = checkpoint_of(path, 10);
  const int64_t from = state ? state->steps_done : 0;
  {
    const auto writer = RunFileWriter::resume(path, from, 10);
    Seed(1).drive(*writer, from, kSeedSteps);
  }
  CHECK(RunFile(path, false, 10).steps() == kSeedSteps);
  CHECK(differing_datasets(folder.file("whole.h5"), path) == std::vector<std::string>{});
}

TEST_CASE("a seed killed before its first step can be continued") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.h5");
  record_seeds(path, 1);
  RunFileWriter::add_seed(path, 10)->on_start(Seed(1).description);
  CHECK(RunFile(path).steps() == kSeedSteps);
  CHECK(RunFile(path, true, 10).steps() == 0);
  CHECK(error_of([&] { RunFile(path, false, 10); }).find("no complete step") != std::string::npos);
}

}  // namespace lockstep::test
