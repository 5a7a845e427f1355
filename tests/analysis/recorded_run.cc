#include "tests/analysis/recorded_run.h"
#include "src/record/run/run_writer.h"
#include "tests/record/run/columns.h"

#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <stdexcept>

namespace lockstep::testing {
namespace {

// Changes every record and passes it to the writer.
class Tamper : public Observer {
 public:
  Tamper(RunFileWriter& writer, Tampering tampering)
      : writer_(writer), tampering_(std::move(tampering)) {}
  void on_start(const RunDescription& run) override {
    described_ = {run, *run.step_graph, *run.sites, *run.options};
    described_.run.step_graph = &described_.graph;
    described_.run.sites = &described_.sites;
    described_.run.options = &described_.options;
    if (tampering_.description) tampering_.description(described_);
    writer_.on_start(described_.run);
  }
  void on_step(const StepRecord& step) override {
    StepRecord changed = step;
    if (tampering_.step) tampering_.step(changed);
    writer_.on_step(changed);
  }
  void on_evaluation(const EvaluationRecord& e) override { writer_.on_evaluation(e); }
  void on_checkpoint(const RunStateView& state) override { writer_.on_checkpoint(state); }
  void on_finish() override { writer_.on_finish(); }

 private:
  RunFileWriter& writer_;
  Tampering tampering_;
  Described described_;
};

}  // namespace

TempDir::TempDir() {
  std::string name =
      (std::filesystem::temp_directory_path() / "lockstep_analysis_test.XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}
TempDir::~TempDir() {
  std::filesystem::remove_all(path_);
}

RunOptions small_run() {
  RunOptions options;
  options.model = "mlp";
  options.data = "synthetic:100";
  options.lanes = {"fp32", "torch-autocast-fp16", "pure-fp16"};
  options.steps = 3;
  options.batch = 8;
  return options;
}

RunFile record(const std::string& path, const RunOptions& options, Tampering tampering) {
  {
    LockstepRun run(options);
    RunFileWriter writer(path, "lockstep test", /*overwrite=*/true);
    Tamper tamper(writer, std::move(tampering));
    run.add_observer(&tamper);
    const std::atomic<bool> stop{false};
    run.run(stop);
  }
  return RunFile(path);
}

size_t some_site(const RunFile& run) {
  const std::vector<uint64_t> count = testing::column(run.step(1, 1), &TensorStats::count);
  size_t site = count.size() / 2;
  while (count[site] == 0) ++site;
  return site;
}

}  // namespace lockstep::testing
