// See trial_runs.h.
#include "analysis/search/trial_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "analysis/findings/drift.h"
#include "analysis/findings/finding_kinds.h"
#include "analysis/findings/findings.h"
#include "analysis/run/lane_outcomes.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_hash.h"
#include "src/policy/find_policy.h"
#include "src/policy/twin_lane.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/run/checkpoint.h"
#include "src/record/run/options_json.h"
#include "src/record/run/play.h"
#include "src/record/run/run_end.h"
#include "src/record/run/run_lock.h"
#include "src/record/run/run_writer.h"
#include "src/record/run/start_from.h"
#include "src/train/lockstep.h"
#include "src/train/observer_thread.h"

namespace lockstep {
namespace {

// Size and time of a file that data come from, or of all files of a folder; "" where the words name
// neither.
std::string identity_of_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path, error)) {
      if (entry.is_regular_file(error)) {
        files.push_back(entry.path().string() + identity_of_file(entry.path().string()));
      }
    }
    std::ranges::sort(files);
    return join(files, ",");
  }
  const auto size = std::filesystem::file_size(path, error);
  if (error) return "";
  const auto time = std::filesystem::last_write_time(path, error).time_since_epoch().count();
  return fmt::format(" ({} bytes, {})", size, time);
}

// Both parts of each site's effect, added up by layer.
std::vector<std::pair<std::string, double>> layers_by_effect(const std::vector<Site>& sites,
                                                             const LossEffectTally& effects) {
  const std::vector<double> rounding = effects.sizes(&LossEffect::rounding);
  const std::vector<double> range = effects.sizes(&LossEffect::range);
  std::map<std::string, double> by_layer;
  double whole = 0;
  for (size_t s = 0; s < sites.size(); ++s) {
    const double size = std::hypot(rounding[s], range[s]);
    if (!(size > 0)) continue;
    by_layer[sites[s].layer] += size;
    whole += size;
  }
  std::vector<std::pair<std::string, double>> layers(by_layer.begin(), by_layer.end());
  for (auto& [layer, size] : layers) size /= whole;
  std::ranges::stable_sort(layers, [](auto& a, auto& b) { return a.second > b.second; });
  return layers;
}

// What a trial rests on beyond the losses.
struct LaneTally : Observer {
  LaneTally(const RunFile& run, int lane)
      : findings(view_of(run), lane), effects(view_of(run), lane) {}
  void on_step(const StepRecord& record) override {
    findings.on_step(record);
    effects.on_step(record);
  }
  FindingTally findings;
  LossEffectTally effects;
};

}  // namespace

bool is_complete_run(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return false;
  try {
    const RunFile run(path);
    return has_all_steps(run) && run.has_checksums() && run.prove().problems.empty();
  } catch (const InputError&) {
    return false;
  }
}

std::shared_ptr<RunLock> lock_search_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw InputError(
        fmt::format("{}: cannot be made: {}", folder, std::strerror(error.value())),
        "the runs of the search are kept there: begin it in a folder that can be written to");
  }
  return lock_run(folder);
}

bool Trial::skips_are_rare() const {
  return late_skips <= 1 + steps / 2 / kStepsPerLateSkip;
}

bool Trial::passes() const {
  if (!skips_are_rare()) return false;
  if (judgement.verdict == Verdict::kFine) return true;
  const bool is_grave = std::ranges::any_of(findings, lockstep::is_grave);
  return judgement.verdict == Verdict::kTooShort && !is_grave && !equal.is_wrong() &&
         std::fabs(judgement.gap) <= judgement.batch_noise;
}

TrialRuns::TrialRuns(RunOptions options, std::string folder, std::string version,
                     const std::atomic<bool>& stop,
                     std::function<std::unique_ptr<Observer>()> watch)
    : options_(std::move(options)),
      folder_(std::move(folder)),
      version_(std::move(version) + identity_of_file("/proc/self/exe")),
      stop_(stop),
      watch_(std::move(watch)) {}

SeedCourses TrialRuns::course(const Candidate& candidate, const RunOptions& options) {
  replay(std::span(&candidate, 1), options);
  return read_courses(RunFile(last_path_));
}

std::string TrialRuns::measure(std::span<const Candidate> candidates, LaneMode mode,
                               int64_t steps) {
  RunOptions options = options_;
  options.mode = mode;
  options.steps = std::min(options.steps, steps);
  const std::string last = last_path_;
  replay(candidates, std::move(options));
  measured_ += static_cast<int64_t>(candidates.size());
  return std::exchange(last_path_, last);
}

// Writes last_path_, unless it is there.
void TrialRuns::replay(std::span<const Candidate> candidates, RunOptions options) {
  options.lanes = {"fp32"};
  options.policy_texts.clear();
  std::string identity = version_ + " " + options_to_json(options) +
                         identity_of_file(options.data.substr(options.data.find(':') + 1));
  for (const Candidate& candidate : candidates) {
    options.lanes.push_back(candidate.lane);
    if (!candidate.is_preset()) options.policy_texts[candidate.lane] = candidate.toml;
    identity += candidate.lane + "\n" + candidate.toml + "\n";
  }
  options.lanes.push_back(twin_name(1));
  last_path_ = fmt::format("{}/{:016x}.h5", folder_, fnv1a(identity));
  ++replays_;
  if (is_complete_run(last_path_)) {
    ++read_again_;
    return;
  }
  std::optional<LockstepRun> run;
  if (!options.capture_hash.empty()) {
    run.emplace(options, read_capture(options.model, CaptureUse::kReplay));
  } else if (options.start_from.empty()) {
    run.emplace(options);
  } else {
    const auto start = read_start(options.start_from);
    options.start_hash = start_hash(start);
    run.emplace(options, &start);
  }
  if (lock_ == nullptr) {
    lock_ = lock_search_folder(folder_);  // until the search ends
    if (is_complete_run(last_path_)) {    // by another search, which has ended since
      ++read_again_;
      return;
    }
  }
  RunFileWriter writer(last_path_, "lockstep recommend", /*overwrite=*/true);
  ObserverThread writing({&writer});
  run->add_observer(&writing);
  const std::unique_ptr<Observer> watcher = watch_ ? watch_() : nullptr;
  if (watcher) run->add_observer(watcher.get());
  if (!run->run(stop_)) throw SearchStopped();
  remove_checkpoints(last_path_);  // no run continues from them
}

std::vector<Trial> TrialRuns::run(std::span<const Candidate> candidates) {
  return run(candidates, options_);
}

std::vector<Trial> TrialRuns::run(std::span<const Candidate> candidates,
                                  const RunOptions& options) {
  replay(candidates, options);
  lanes_ += static_cast<int64_t>(candidates.size());
  const RunFile run(last_path_);
  const std::vector<SeedCourses> courses = read_all_courses(run);
  const std::vector<LaneJudgement> judgements = judge_lanes(courses);
  std::vector<std::unique_ptr<LaneTally>> tallies;
  std::vector<Observer*> observers;
  for (const Candidate& candidate : candidates) {
    tallies.push_back(std::make_unique<LaneTally>(run, run.lane_index(candidate.lane)));
    observers.push_back(tallies.back().get());
  }
  play(run, every_lane(run), observers);
  std::vector<Trial> trials;
  for (const Candidate& candidate : candidates) {
    const int lane = run.lane_index(candidate.lane);
    const LaneTally& tally = *tallies[trials.size()];
    Trial& trial = trials.emplace_back();
    trial.candidate = candidate;
    trial.judgement = judgements[static_cast<size_t>(lane)];
    trial.findings = tally.findings.findings();
    trial.equal = tally.findings.equal_step();
    const auto& skips = courses.front().lanes[static_cast<size_t>(lane)].skips;
    trial.steps = run.steps();
    trial.memory = run.lanes()[static_cast<size_t>(lane)].memory.value_or(MemoryFacts{});
    const std::vector<double>& reference = courses.front().lanes.front().loss;
    trial.reference_loss = tail_mean(reference);
    trial.reference_fall = reference.front() - trial.reference_loss;
    trial.skips = static_cast<int64_t>(skips.size());
    trial.late_skips =
        std::ranges::count_if(skips, [&](int64_t step) { return step >= run.steps() / 2; });
    trial.moved_by = layers_by_effect(run.sites().sites, tally.effects);
  }
  return trials;
}

}  // namespace lockstep
