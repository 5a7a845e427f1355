// See replay_run.h.
#include "src/cli/replay_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "reports/section.h"
#include "src/cli/capture_argument.h"
#include "src/cli/command.h"
#include "src/cli/progress.h"
#include "src/cli/stop_signal.h"
#include "src/cli/terminal.h"
#include "src/core/text.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/run/run_file.h"

namespace lockstep {
namespace {

void print_end(const std::string& path, bool finished, bool quiet) {
  const RunFile run(path);
  if (!finished) {
    fmt::print(
        "Stopped after step {} of {}; {} is intact. To continue:\n  lockstep replay --resume {}\n",
        run.steps(), run.options().steps, path, path);
    return;
  }
  if (quiet) return;
  fmt::print("\n{}\n", report_text(read_report(run), /*summary_only=*/true, output_style()));
  fmt::print(
      "Recorded {} steps in {}. Next:\n  lockstep report {}\n"
      "Only --resume needs {}.state, .state.1 and .progress.json; you may delete them.\n",
      run.steps(), path, shell_quoted(path), path);
}

int report_write_error(const WriteError& error, const std::string& path) {
  fmt::print(stderr,
             "lockstep: {}\nThe steps recorded so far are intact. Free some disk space, then:\n"
             "  lockstep replay --resume {}\n",
             error.what(), path);
  return kExitUsage;
}

int execute(LockstepRun& run, RunFileWriter& writer, Progress* progress, const std::string& path) {
  for (const LaneDescription& lane : run.description().lanes) {
    for (const std::string& note : lane.policy.notes) {
      fmt::print(stderr, "lockstep: note: lane {}: {}\n", lane.name, note);
    }
    for (const std::string& warning : lane.warnings) {
      fmt::print(stderr, "lockstep: warning: lane {}: {}\n", lane.name, warning);
    }
  }
  run.add_observer(&writer);
  if (progress != nullptr) run.add_observer(progress);
  try {
    const bool finished = run.run(catch_stop_signals());
    return finished ? kExitFine : kExitSignalBase + stop_signal();
  } catch (const WriteError& error) {
    if (progress != nullptr) progress->on_finish();
    return report_write_error(error, path);
  }
}

std::unique_ptr<Progress> make_progress(const ReplayArgs& args, int64_t first, int64_t steps) {
  return args.quiet ? nullptr : std::make_unique<Progress>(first, steps);
}

// A run, and the capture it replays, if any, which outlives it.
struct Made {
  std::optional<Capture> capture;
  std::optional<LockstepRun> run;
};

// A new run, from the weights given by its options.
void make_run(Made& made, RunOptions& options) {
  std::optional<LockstepRun>& run = made.run;
  if (is_capture(options.model)) {
    made.capture.emplace(read_capture(options.model, CaptureUse::kReplay));
    run.emplace(options, *made.capture);
  } else if (options.start_from.empty()) {
    run.emplace(options);
  } else {
    const auto start = read_start(options.start_from);
    options.start_hash = start_hash(start);
    run.emplace(options, &start);
  }
}

// A run from its file: continued from its checkpoint or, if there is none, from its start.
void make_resumed_run(Made& made, const RunOptions& options, const std::optional<RunState>& state) {
  std::optional<LockstepRun>& run = made.run;
  if (!options.capture_hash.empty()) {
    made.capture.emplace(read_capture(options.model, CaptureUse::kReplay));
    if (made.capture->sha256 != options.capture_hash) {
      throw InputError(fmt::format("capture '{}' has SHA-256 {}, the run began with {}",
                                   options.model, made.capture->sha256, options.capture_hash),
                       "the capture has been replaced; start a new run");
    }
    run.emplace(options, *made.capture);
    if (state) run->restore(*state);
    return;
  }
  if (state || options.start_from.empty()) {
    run.emplace(options);
    if (state) run->restore(*state);
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

// True if nothing is left to record: no step, no sums over the last steps, no evaluation at the end
// (a run may be killed between any two of these).
bool is_complete(const RunFile& run) {
  const int64_t steps = run.options().steps;
  if (run.steps() < steps) return false;
  for (int lane = 0; lane < static_cast<int>(run.lanes().size()); ++lane) {
    const std::vector<Evaluation> evaluations = run.evaluations(lane);
    const bool is_captured = !run.options().capture_hash.empty();  // a capture has no held-out data
    if (is_captured && run.lanes()[static_cast<size_t>(lane)].name == kCapturedLane) continue;
    if (!is_captured && (evaluations.empty() || evaluations.back().steps_done < steps)) {
      return false;
    }
    if (run.total_histogram_steps(lane) < steps) return false;
  }
  return true;
}

}  // namespace

int start_run(ReplayArgs& args, ProblemList& problems) {
  const std::string path = args.output.empty() ? kDefaultRunFile : args.output;
  check_output(path, args.overwrite ? Replace::kRun : Replace::kNothing,
               fmt::format("-o OTHER, --overwrite, or `replay --resume {}` to continue it", path),
               problems);
  const std::string& start_from = args.options.start_from;
  collect_problems(problems, [&] {
    if (start_from.empty() || !starts_from_run(start_from, path)) return;
    problems.add(fmt::format("--start-from {}: a new run in {} deletes it", start_from, path),
                 "choose another -o, or copy the checkpoint away first");
  });
  args.options.mode = args.mode == "synced" ? LaneMode::kSynced : LaneMode::kFree;
  args.options.backward_per_loss = args.backward == kBackwardPerLoss;
  Made made;  // finds every other mistake before any file is touched
  if (args.options.model.empty()) {
    problems.add("MODEL: missing", "see `lockstep list models`, or name a capture file");
  } else if (std::ranges::count(args.options.lanes, "") == 0) {
    collect_problems(problems, [&] { make_run(made, args.options); });
  }
  problems.throw_if_any();
  LockstepRun& run = *made.run;
  int code = kExitFine;
  {
    RunFileWriter writer(path, command_line(), args.overwrite);
    const auto progress = make_progress(args, 0, run.description().options->steps);
    code = execute(run, writer, progress.get(), path);
  }
  if (code != kExitUsage) print_end(path, code == kExitFine, args.quiet);
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
  RunOptions options;
  std::optional<RunState> state;
  bool complete = false;
  {
    const RunFile run(
        path,
        /*allow_empty=*/true);  // a run killed before its first step can be resumed, too
    options = run.options();
    complete = is_complete(run);
    if (!complete) state = read_checkpoint(path, run.steps());
  }
  if (!args.options.model.empty() && args.options.model != options.model) {
    throw InputError(
        fmt::format("model '{}': {} is a run of '{}'", args.options.model, path, options.model));
  }
  if (complete) {
    if (!args.quiet) {
      fmt::print(
          "{} is complete: all {} steps are recorded, nothing is left to do. Next:\n"
          "  lockstep report {}\n",
          path, options.steps, shell_quoted(path));
    }
    return kExitFine;
  }
  const int64_t from = state ? state->steps_done : 0;
  Made made;
  make_resumed_run(made, options, state);
  LockstepRun& run = *made.run;
  int code = kExitFine;
  {
    const auto writer = RunFileWriter::resume(path, from);
    const auto progress = make_progress(args, from, options.steps);
    code = execute(run, *writer, progress.get(), path);
  }
  if (code != kExitUsage) print_end(path, code == kExitFine, args.quiet);
  return code;
}

}  // namespace lockstep
