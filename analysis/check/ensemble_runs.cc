// See ensemble_runs.h.
#include "analysis/check/ensemble_runs.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "analysis/check/change_lines.h"
#include "analysis/exact/recorded_run.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/jobs/parts_replay.h"
#include "src/record/capture/parts_index.h"
#include "src/record/run/environment.h"
#include "src/record/run/run_end.h"
#include "src/record/run/run_lock.h"
#include "src/record/run/run_writer.h"
#include "src/train/observer_thread.h"

namespace lockstep {

EnsembleRuns::EnsembleRuns(std::string folder, const std::atomic<bool>& stop,
                           std::function<std::unique_ptr<Observer>(int64_t, int64_t)> watch)
    : folder_(std::move(folder)), stop_(stop), watch_(std::move(watch)) {}

void EnsembleRuns::prepare() {
  if (is_made_) return;
  is_ours_ = false;
  lock_ = lock_run(folder_);
  std::error_code error;
  const bool is_new = std::filesystem::create_directories(folder_, error);
  if (error) {
    throw InputError(fmt::format("{}: cannot be made: {}", folder_, std::strerror(error.value())));
  }
  if (!is_new) remove_left_runs();
  is_made_ = is_ours_ = true;
}

std::string EnsembleRuns::path_of(const std::string& name) {
  prepare();
  return folder_ + "/" + name + ".h5";
}

// What a program left that was killed. Nothing else is touched.
void EnsembleRuns::remove_left_runs() const {
  std::vector<std::filesystem::path> runs;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder_, error), end; !error && at != end;
       at.increment(error)) {
    const auto& entry = *at;
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".h5") || name.find(".h5.") != std::string::npos) {
      runs.push_back(entry.path());
      continue;
    }
    throw InputError(fmt::format("{}: is there already and holds {}", folder_, printable(name)),
                     "move it away, or choose another -o: this folder is for the ensemble's runs");
  }
  for (const std::filesystem::path& run : runs) std::filesystem::remove(run, error);
}

void EnsembleRuns::remove_run(const std::string& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  for (const std::string_view ending : kNextToRun) {
    std::filesystem::remove(path + std::string(ending), error);
  }
}

EnsembleRuns::~EnsembleRuns() {
  std::error_code error;
  if (is_made_) {
    std::filesystem::remove_all(folder_, error);
  } else if (is_ours_) {
    std::filesystem::remove(folder_, error);  // made by the caller, and empty
  }
}

std::string EnsembleRuns::run(RunOptions options, const std::string& name) {
  const std::string path = path_of(name);
  constexpr const char* kCommand = "lockstep baseline record";
  if (is_parts_folder(options.model)) {
    if (watch_) watch_(started_, wanted_);
    ++started_;
    const PartsIndex index = read_parts_index(options.model);
    if (!replay_parts(index, {std::move(options), path, kCommand}, {}, stop_)) {
      throw EnsembleStopped();
    }
    return path;
  }
  std::optional<LockstepRun> run;
  make_recorded_run(run, std::move(options));
  RunFileWriter writer(path, kCommand, /*overwrite=*/true);
  ObserverThread writing({&writer});
  run->add_observer(&writing);
  const std::unique_ptr<Observer> progress = watch_ ? watch_(started_, wanted_) : nullptr;
  ++started_;
  if (progress != nullptr) run->add_observer(progress.get());
  if (!run->run(stop_)) {
    remove_run(path);
    throw EnsembleStopped();
  }
  return path;
}

RunSummary EnsembleRuns::summary_of(RunOptions options, const std::string& name) {
  const std::string path = run(std::move(options), name);
  RunSummary summary = summarize(RunFile(path));
  remove_run(path);
  return summary;
}

Baseline EnsembleRuns::record(const EnsembleRequest& request) {
  wanted_ = 1 + request.members + request.seeds + static_cast<int64_t>(request.captures.size());
  const std::string path = run(request.options, "run");
  Baseline baseline = record_around(path, request);
  remove_run(path);
  return baseline;
}

Baseline EnsembleRuns::record_around(const std::string& run_path, const EnsembleRequest& request) {
  const RunFile run(run_path);
  if (run.steps() < request.options.steps || !has_all_steps(run)) {
    throw InputError(fmt::format("{}: {} of {} steps are recorded{}", run_path, run.steps(),
                                 request.options.steps,
                                 run.steps() < request.options.steps
                                     ? ""
                                     : ", without the sums that are written after the last"),
                     "`lockstep replay --resume` completes it");
  }
  std::vector<RunSummary> ulps = {summarize(run)}, seeds;
  for (int64_t k = 1; k <= request.members; ++k) {
    RunOptions options = request.options;
    options.nudge = static_cast<uint64_t>(k);
    ulps.push_back(summary_of(std::move(options), fmt::format("nudge-{}", k)));
  }
  if (request.seeds > 0 || !request.captures.empty()) seeds.push_back(ulps.front());
  for (int64_t k = 1; k <= request.seeds; ++k) {
    RunOptions options = request.options;
    options.seed += static_cast<uint64_t>(k);
    seeds.push_back(summary_of(std::move(options), fmt::format("seed-{}", options.seed)));
  }
  recorded_ = ulps.front();
  const RunFacts facts = facts_of(run);
  for (const std::string& capture : request.captures) {
    RunOptions options = request.options;
    options.model = capture;
    options.capture_hash = hash_of_captured(capture);
    const std::string path = this->run(std::move(options), fmt::format("capture-{}", seeds.size()));
    const RunFile other(path);
    RunSummary summary = summarize(other);
    const RunFacts there = facts_of(other);
    const RunMatch match = match_runs(facts, there);
    const ChangeLines lines = change_lines(facts, there, match);
    const bool is_equal = match.sites.free_before().empty() && lines.no_match.empty() &&
                          there.sites.size() == facts.sites.size();
    remove_run(path);
    if (!is_equal) {
      throw InputError(fmt::format("{}: not a capture of the same loop: {}", capture,
                                   lines.changes.empty() ? "other sites" : lines.changes.front()),
                       "capture the same script with another seed");
    }
    seeds.push_back(std::move(summary));
  }
  Baseline baseline = make_baseline(run, ulps, seeds);
  baseline.history.push_back(
      {.created_utc = utc_now(), .lockstep_version = {}, .reason = "recorded", .keys = "*"});
  return baseline;
}

}  // namespace lockstep
