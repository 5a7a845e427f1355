// A run without an engine: a hand-made graph, site table and step records that are pure functions
// of (lane, site, step), so that a test knows every number a run file must hold.
#pragma once

#include <cstdint>
#include <string>

#include "src/record/run/run_writer.h"
#include "src/train/lockstep.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::test {

using testing::error_of;
using testing::TemporaryFolder;

struct SyntheticRun {
  // Lanes "fp32" and "half/way%.toml"; the second dies after step `died_after` if that is >= 0.
  explicit SyntheticRun(int64_t steps, int64_t site_count = 3, int64_t lane_count = 2);
  SyntheticRun(const SyntheticRun&) = delete;

  StepRecord step(int64_t step) const;
  EvaluationRecord evaluation(int64_t steps_done) const;
  RunState state(int64_t steps_done) const;
  // What LockstepRun::run does: steps [from, to), evaluations, checkpoints, on_finish.
  void drive(RunFileWriter& writer, int64_t from, int64_t to) const;
  // The whole run, or the rest of it, as with `replay` and `replay --resume`.
  void record(const std::string& path) const;
  void resume(const std::string& path) const;

  Graph graph;
  SiteTable sites;
  RunOptions options;
  RunDescription description;
  int64_t died_after = -1;
};

inline constexpr int64_t kSkipEvery = 33;  // lane 1 skips every 33rd step

// The paths of all datasets whose shape or bytes differ between two files, `seconds` left out.
std::vector<std::string> differing_datasets(const std::string& a, const std::string& b);

// "" if the file reads as the first `steps` steps of `run` with at least `at_least` of them;
// otherwise what is wrong. Reads every dataset.
std::string problem_of(const std::string& path, const SyntheticRun& run, int64_t at_least);

}  // namespace lockstep::test
