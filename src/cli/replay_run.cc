// See replay_run.h.
#include "src/cli/replay_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "analysis/findings/finding_kinds.h"
#include "analysis/findings/live_findings.h"
#include "src/cli/arguments/capture_argument.h"
#include "src/cli/command.h"
#include "src/cli/command_files.h"
#include "src/cli/replay_end.h"
#include "src/cli/replay_parts.h"
#include "src/cli/saved_values.h"
#include "src/cli/terminal/progress.h"
#include "src/cli/terminal/stop_signal.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/capture/parts_index.h"
#include "src/record/run/checkpoint.h"
#include "src/record/run/play.h"
#include "src/record/run/run_end.h"
#include "src/record/run/run_lock.h"
#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"
#include "src/record/run/start_from.h"
#include "src/train/observer_thread.h"
#include "src/train/run_option_rows.h"

namespace lockstep {
namespace {

// For the live view.
std::vector<std::vector<SnapshotFinding>> snapshot_findings(const LiveFindings& live) {
  std::vector<std::vector<SnapshotFinding>> out;
  for (const std::vector<ToldFinding>& lane : live.findings()) {
    auto& of_lane = out.emplace_back();
    for (const auto& [finding, sentence] : lane) {
      of_lane.push_back({.kind = std::string(row_of(finding.kind).name),
                         .sentence = sentence,
                         .first_step = finding.first_step});
    }
  }
  return out;
}

// `recall`: plays the recorded steps of a run that is resumed.
int execute(LockstepRun& run, RunFileWriter& writer, Progress* progress, const std::string& path,
            std::function<void(Observer&)> recall = nullptr) {
  LiveFindings findings(run.description(), std::move(recall));
  writer.show_findings([&] { return snapshot_findings(findings); });
  ObserverThread writing({&writer, &findings});  // the file first
  run.add_observer(&writing);
  if (progress != nullptr) run.add_observer(progress);
  try {
    const bool finished = run.run(catch_stop_signals());
    return finished ? kExitFine : kExitSignalBase + stop_signal();
  } catch (const WriteError& error) {
    if (progress != nullptr) progress->on_finish();
    return report_write_error(error, path);
  }
}

std::unique_ptr<Progress> make_progress(const ReplayArgs& args, int64_t first, int64_t steps,
                                        const std::string& seed) {
  return args.quiet ? nullptr : std::make_unique<Progress>(first, steps, seed);
}

// A new run, from the weights given by its options.
void make_run(std::optional<LockstepRun>& run, RunOptions& options) {
  if (is_capture(options.model)) {
    run.emplace(options, read_capture(options.model, CaptureUse::kReplay));
  } else if (options.start_from.empty()) {
    run.emplace(options);
  } else {
    const auto start = read_start(options.start_from);
    options.start_hash = start_hash(start);
    run.emplace(options, &start);
  }
}

// A run from its file: continued from its checkpoint or, if there is none, from its start.
void make_resumed_run(std::optional<LockstepRun>& run, const RunOptions& options,
                      std::optional<RunState> state) {
  if (!options.capture_hash.empty()) {
    Capture capture = read_capture(options.model, CaptureUse::kReplay);
    if (capture.sha256 != options.capture_hash) {
      throw InputError(fmt::format("capture '{}' has SHA-256 {}, the run began with {}",
                                   options.model, capture.sha256, options.capture_hash),
                       "the capture has been replaced; start a new run");
    }
    run.emplace(options, std::move(capture));
    if (state) run->restore(*std::move(state));
    return;
  }
  if (state || options.start_from.empty()) {
    run.emplace(options);
    if (state) run->restore(*std::move(state));
    return;
  }
  const auto start = read_start(options.start_from);
  const std::string hash = start_hash(start);
  if (hash != options.start_hash) {
    throw InputError(fmt::format("start-from '{}': holds weights {}, the run began with {}",
                                 options.start_from, hash, options.start_hash),
                     "that run has continued since; start a new run");
  }
  run.emplace(options, &start);
}

// Whether every lane has the evaluation after its last step. A capture has no held-out data.
bool is_evaluated(const RunFile& run) {
  if (!run.options().capture_hash.empty()) return true;
  for (int lane = 0; lane < static_cast<int>(run.lanes().size()); ++lane) {
    const std::vector<Evaluation> evaluations = run.evaluations(lane);
    if (evaluations.empty() || evaluations.back().steps_done < run.options().steps) return false;
  }
  return true;
}

// True if nothing is left to record: no step, no sums over the last steps, no evaluation at the end
// (a run may be killed between any two of these).
bool is_complete(const RunFile& run) {
  return has_all_steps(run) && is_evaluated(run);
}

// The last step from which the run can continue: a checkpoint comes after the evaluation of its
// step.
int64_t last_start(const RunFile& run) {
  const bool lacks_end = run.steps() == run.options().steps && !is_evaluated(run);
  return lacks_end ? run.steps() - 1 : run.steps();
}

// Records the seeds that the file lacks, each with the options of the first.
int add_seeds(const ReplayArgs& args, const std::string& path) {
  RunOptions first;
  size_t recorded = 0;
  {
    const RunFile run(path, /*allow_empty=*/true);
    first = run.options();
    recorded = run.seeds().size();
  }
  for (auto k = static_cast<int64_t>(recorded); k < first.seeds; ++k) {
    RunOptions options = first;
    options.seed = first.seed + static_cast<uint64_t>(k);
    std::optional<LockstepRun> run;
    make_resumed_run(run, options, std::nullopt);
    const auto writer = RunFileWriter::add_seed(path, options.seed);
    const auto progress = make_progress(args, 0, options.steps, seed_text(first, options.seed));
    const int code = execute(*run, *writer, progress.get(), path);
    if (code != kExitFine) return code;
  }
  return kExitFine;
}

}  // namespace

int start_run(ReplayArgs& args, ProblemList& problems) {
  if (is_parts_folder(args.options.model)) return replay_parts_folder(args, problems);
  const std::string path = args.output.empty() ? kDefaultRunFile : args.output;
  check_output(path, args.overwrite ? Replace::kRun : Replace::kNothing,
               fmt::format("-o OTHER, --overwrite, or `replay --resume {}` to continue it",
                           shell_path(path)),
               problems);
  const std::string& start_from = args.options.start_from;
  CommandFiles files;
  files.inputs_of(args.options);
  files.run_output("-o", path);
  files.output("--save-values", args.save_values);
  bool deletes_start = false;
  collect_problems(problems, [&] {
    deletes_start = !start_from.empty() && starts_from_run(start_from, path);
    if (!deletes_start) return;
    problems.add(fmt::format("{} {}: a new run in {} deletes it",
                             option_name(&RunOptions::start_from), start_from, path),
                 "choose another -o, or copy the checkpoint away first");
  });
  if (!deletes_start) files.check(problems);
  std::optional<LockstepRun> made;  // finds every other mistake before any file is touched
  if (args.options.model.empty()) {
    problems.add("MODEL: missing", "see `lockstep list models`, or name a capture file");
  } else {
    collect_problems(problems, [&] { make_run(made, args.options); });
  }
  problems.throw_if_any();
  LockstepRun& run = *made;
  std::optional<SavedValues> saved;
  if (!args.at.empty()) {
    check_output(args.save_values, args.overwrite ? Replace::kText : Replace::kNothing,
                 "another name, or --overwrite", problems, "--save-values");
    problems.throw_if_any();
    saved.emplace(args.save_values, args.at, run);
    run.add_observer(&*saved);
  }
  print_run_notes(run.description());
  int code = kExitFine;
  const auto lock = lock_run(path);  // for all seeds
  {
    RunFileWriter writer(path, command_line(), args.overwrite);
    const RunOptions& options = *run.description().options;
    const auto progress = make_progress(args, 0, options.steps, seed_text(options, options.seed));
    code = execute(run, writer, progress.get(), path);
  }
  made.reset();  // the next seed needs the memory
  if (code == kExitFine) code = add_seeds(args, path);
  if (code != kExitUsage) print_run_end(path, code == kExitFine, args.quiet);
  return code;
}

int resume_run(const ReplayArgs& args, const ProblemList& problems) {
  problems.throw_if_any();
  if (!args.resume_from.empty() && !args.output.empty() && args.resume_from != args.output) {
    throw InputError(fmt::format("--resume {} and -o {}: a run continues in its own file",
                                 args.resume_from, args.output),
                     "give one of them");
  }
  std::string path = args.resume_from.empty() ? args.output : args.resume_from;
  if (path.empty()) path = kDefaultRunFile;
  { const RunFile known(path, /*allow_empty=*/true); }  // no lock for a file that is none
  const auto lock = lock_run(path);
  RunOptions first, options;
  std::optional<RunState> state;
  bool complete = false, all_seeds = false;
  uint64_t seed = 0;
  {
    // A run killed before its first step can be resumed, too. Seeds are recorded one after the
    // other, so only the last in the file may be unfinished.
    const RunFile file(path, /*allow_empty=*/true);
    first = file.options();
    seed = file.seeds().back();
    all_seeds = static_cast<int64_t>(file.seeds().size()) == first.seeds;
    const RunFile last(path, /*allow_empty=*/true, seed);
    options = last.options();
    complete = is_complete(last);
    if (!complete) state = read_checkpoint(path, last_start(last), last.identity());
  }
  CommandFiles files;
  files.inputs_of(options);
  files.run_output("--resume", path);
  ProblemList clashes("replay --resume");
  files.check(clashes);
  clashes.throw_if_any();
  if (!args.options.model.empty() && args.options.model != options.model) {
    throw InputError(
        fmt::format("model '{}': {} is a run of '{}'", args.options.model, path, options.model));
  }
  if (complete && all_seeds) {
    if (!args.quiet) {
      fmt::print(
          "{} is complete: all {} steps{} are recorded, nothing is left to do. Next:\n"
          "  lockstep report {}\n",
          printable(path), options.steps,
          first.seeds == 1 ? "" : fmt::format(" from each of {} seeds", first.seeds),
          shell_path(path));
    }
    return kExitFine;
  }
  int code = kExitFine;
  if (!complete) {
    const int64_t from = state ? state->steps_done : 0;
    std::optional<LockstepRun> run;
    make_resumed_run(run, options, std::move(state));
    print_run_notes(run->description());
    const auto writer = RunFileWriter::resume(path, from, seed);
    const auto progress = make_progress(args, from, options.steps, seed_text(first, seed));
    const auto recall = [&](Observer& to) { play(RunFile(path, /*allow_empty=*/true, seed), to); };
    code = execute(*run, *writer, progress.get(), path, recall);
  }
  if (code == kExitFine) code = add_seeds(args, path);
  if (code != kExitUsage) print_run_end(path, code == kExitFine, args.quiet);
  return code;
}

}  // namespace lockstep
