// A run in progress has the findings that its file gives afterwards.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

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

TEST_CASE("findings of a run in progress are those of its file, of lanes that stop, too") {
  const TempDir folder;
  RunOptions options = small_run();
  options.steps = 6;
  options.lanes.push_back("gives-up.toml");  // its first skip asks for less than the minimum
  options.policy_texts["gives-up.toml"] =
      "name = 'gives-up'\nversion = '1'\nhelp = 'a test'\nsource = 'a test'\n"
      "extends = 'torch-autocast-fp16'\n"
      "[loss_scale]\nkind = 'fairseq'\ninit_scale = 1e12\nmin_scale = 9e11\n";
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
  const auto gave_up = [](const ToldFinding& told) {
    return told.finding.kind == FindingKind::kScaleFloor;
  };
  REQUIRE(file.lanes()[3].died_of == DeathCause::kLossScaler);
  CHECK(std::ranges::any_of(live[3], gave_up));
}

TEST_CASE("a view that fails says so and ends nothing") {
  const LockstepRun run(small_run());
  LiveFindings findings(run.description(), [](Observer&) { throw std::runtime_error("no file"); });
  findings.on_start(run.description());
  findings.on_step({});
  CHECK_THROWS_WITH(findings.findings(), "no file");
  LiveFindings strange(run.description());
  strange.on_step({.lanes = std::vector<LaneStep>(3)});  // alive, without a scaler
  CHECK_THROWS_AS(strange.findings(), std::runtime_error);
}

}  // namespace lockstep::testing
