// See seed_files.h.
#include "tests/fuzz/seed_files.h"

#include <fmt/format.h>

#include <atomic>
#include <filesystem>

#include "analysis/check/baseline.h"
#include "analysis/check/run_summary.h"
#include "src/core/parallel.h"
#include "src/core/text_file.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"
#include "src/train/lockstep.h"
#include "tests/record/capture/capture_file.h"
#include "tests/record/capture/seed_graphs.h"

namespace lockstep::fuzz {
namespace {

RunOptions small_run() {
  RunOptions options;
  options.model = "mlp";
  options.sizes = {{"hidden1", 2}, {"hidden2", 2}};
  options.data = "synthetic:50";
  options.lanes = {"fp32", "torch-autocast-fp16"};
  options.steps = 3;
  options.batch = 2;
  options.checkpoint_every = 2;
  return options;
}

void record(const std::string& path, const RunOptions& options) {
  LockstepRun run(options);
  RunFileWriter writer(path, "lockstep replay", /*overwrite=*/true);
  run.add_observer(&writer);
  const std::atomic<bool> stop{false};
  run.run(stop);
}

}  // namespace

void make_seed_files(const std::string& folder) {
  set_thread_count(1);
  const auto file = [&](const char* name) { return folder + "/" + name; };
  record(file("run.h5"), small_run());
  RunOptions many = small_run();  // with more of everything that a run file can hold
  many.lanes = {"fp32", "pure-fp16", "fp64", "twin"};
  many.steps = 12;
  many.groups = {{"fc2", {"adamw", {{"lr", 0.01}}}}};
  many.eval_every = 4;
  many.measuring.sums_every = 3;
  record(file("many.h5"), many);
  const RunFile run(file("run.h5"));
  const std::vector<RunSummary> ulps = {summarize(run)};
  write_text_file_atomically(file("baseline.json"), to_json(make_baseline(run, ulps, {})));
  size_t number = 0;
  for (const Graph& graph : testing::seed_graphs()) {
    const std::string path = fmt::format("{}/capture-{}", folder, number);
    testing::write_tree(path, testing::capture_of(graph), number++ % 2 != 0);
    testing::seal_capture(path);
  }
}

}  // namespace lockstep::fuzz
