// A run in progress has the findings that its file gives afterwards.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>

#include "analysis/findings/live_findings.h"
#include "src/record/run/play.h"
#include "src/record/run/run_writer.h"
#include "tests/analysis/recorded_run.h"

namespace lockstep::testing {
namespace {

// Each finding's sentence and steps.
std::vector<std::string> texts_of(const std::vector<ToldFinding>& findings) {
  std::vector<std::string> texts;
  for (const auto& [f, sentence] : findings) {
    texts.push_back(fmt::format("{} ({} to {}, {})", sentence, f.first_step, f.last_step, f.steps));
  }
  return texts;
}

}  // namespace

TEST_CASE("findings of a run in progress are those of its file, step by step") {
  const TempDir folder;
  RunOptions options = small_run();
  options.steps = 6;
  options.optimizer = {"adam", {{"lr", 30}}};  // weights overflow, states become zero
  const std::string path = folder.file("run.h5");
  std::vector<std::vector<ToldFinding>> live;
  {
    LockstepRun run(options);
    LiveFindings findings(run.description());
    RunFileWriter writer(path, "lockstep test", /*overwrite=*/true);
    run.add_observer(&findings);
    run.add_observer(&writer);
    const std::atomic<bool> stop{false};
    run.run(stop);
    live = findings.findings();

    // What a resumed run does: the recorded steps are played, then some are computed again.
    LiveFindings resumed(run.description());
    const RunFile file(path);
    play(file, resumed);
    play(file, resumed);
    for (size_t lane = 0; lane < live.size(); ++lane) {
      CHECK(texts_of(resumed.findings()[lane]) == texts_of(live[lane]));
    }
  }
  const RunFile file(path);
  REQUIRE(live.size() == file.lanes().size());
  size_t found = 0;
  for (size_t lane = 0; lane < live.size(); ++lane) {
    CAPTURE(file.lanes()[lane].name);
    CHECK(texts_of(live[lane]) == texts_of(find_findings(file, static_cast<int>(lane))));
    found += live[lane].size();
  }
  CHECK(live.front().empty());  // the reference is not judged
  CHECK(found >= 2);
}

}  // namespace lockstep::testing
