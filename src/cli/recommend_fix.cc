// See recommend_fix.h.
#include "src/cli/recommend_fix.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "analysis/candidates/policy_edit.h"
#include "analysis/fix/fix.h"
#include "analysis/report/main_finding.h"
#include "reports/advice/fix_text.h"
#include "src/cli/arguments/capture_argument.h"
#include "src/cli/arguments/search_arguments.h"
#include "src/cli/command.h"
#include "src/cli/terminal/progress.h"
#include "src/cli/terminal/stop_signal.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/capture/parts_index.h"
#include "src/record/run/run_reader.h"

namespace lockstep {
namespace {

using LaneAndFix = std::pair<FixLane, Fix>;

LaneAndFix run_fix(FixArgs& args, FixFacts& facts) {
  RunOptions& options = args.options;
  facts = {.model = options.model,
           .lane = args.lane,
           .is_capture = is_capture(options.model),
           .folder = args.folder};
  std::optional<Capture> capture;
  if (facts.is_capture) {
    capture.emplace(read_capture(options.model, CaptureUse::kReplay));
    options.capture_hash = capture->sha256;
    const auto captured = static_cast<int64_t>(capture->steps.size());
    options.cycle = options.cycle || captured < options.steps;
  }
  FixLane lane = fix_lane(args.lane, options, capture ? &*capture : nullptr);
  facts.toml = lane.toml;
  capture.reset();
  options.held_out = false;  // losses are judged
  const auto watch = [&]() -> std::unique_ptr<Observer> {
    if (args.quiet || args.json) return nullptr;
    return std::make_unique<Progress>(0, options.steps, "");
  };
  TrialRuns runs(options, args.folder, LOCKSTEP_VERSION, catch_stop_signals(), watch);
  Fix fix = find_fix(runs, lane, args.budget);
  facts.replays = runs.replays();
  facts.lanes = runs.lanes();
  facts.read_again = runs.read_again();
  return {std::move(lane), std::move(fix)};
}

}  // namespace

RunOptions options_of_run(const std::string& path, int64_t steps) {
  RunOptions options = RunFile(path).options();
  std::error_code error;
  if (!options.capture_hash.empty()) {
    if (!std::filesystem::exists(options.model, error)) {
      throw InputError(fmt::format("{}: its capture '{}' is not there", path, options.model),
                       "run this where that path leads to it, or name the capture: lockstep "
                       "recommend CAPTURE --fix LANE");
    }
    const std::string now = hash_of_captured(options.model);
    if (now != options.capture_hash) {
      throw InputError(fmt::format("{}: capture '{}' has SHA-256 {}, the run began with {}", path,
                                   options.model, now, options.capture_hash),
                       "it has been replaced; name the capture instead of the run");
    }
  }
  if (steps > 0) options.steps = steps;
  options.seeds = 1;
  options.measuring.statistics_every = 1;  // findings are judged
  options.measuring.counts_between = false;
  options.mode = LaneMode::kFree;  // losses are judged
  return options;
}

std::string search_folder(const std::string& model) {
  std::filesystem::path path(model);
  if (!path.has_filename()) path = path.parent_path();  // "parts/"
  std::filesystem::path folder = path.parent_path();
  if (!folder.empty() && access(folder.c_str(), W_OK) != 0) folder.clear();
  return (folder / (stem_of(path.string()) + ".recommend")).string();
}

int recommend_fix(FixArgs& args) {
  FixFacts facts;
  std::optional<LaneAndFix> found;
  try {
    found.emplace(run_fix(args, facts));
  } catch (const SearchStopped&) {
    return search_stopped(args.folder);
  }
  const auto& [lane, fix] = *found;
  print_text(args.json ? fix_json(fix, facts) : fix_text(fix, facts, output_style()));
  if (!args.output.empty()) {
    if (fix.answer == Fix::Answer::kFixed) {
      const std::string name = std::filesystem::path(args.output).stem().string();
      write_text_file_atomically(args.output, edited_policy(lane.toml, name, fix.fix().edits));
      if (!args.json) print_line("Wrote " + args.output + ".");
    } else {
      fmt::print(stderr, "lockstep: note: there is no policy to write\n");
    }
  }
  const bool answered =
      fix.answer == Fix::Answer::kFixed || fix.answer == Fix::Answer::kNothingWrong;
  return answered ? kExitFine : kExitInconclusive;
}

void try_remedies(Report& report) {
  double seconds = 0;
  for (const LaneReport& lane : report.lanes) {
    if (std::isfinite(lane.seconds)) seconds += lane.seconds;  // PyTorch's own run has no time
  }
  if (seconds > kQuickSeconds) {
    return print_note(fmt::format(
        "note: --try: the replay took {:.0f} s, more than {:g}: no remedy was run. `lockstep "
        "recommend {} --fix LANE` runs them.",
        seconds, kQuickSeconds, shell_path(report.path)));
  }
  if (!std::isfinite(report.reference().judgement.tail_loss)) {
    return print_note("note: --try: fp32 itself breaks; no remedy was run");
  }
  size_t tried = 0;
  for (LaneReport& lane : report.lanes) {
    if (!lane.is_candidate() || main_finding(lane) == nullptr || ++tried > kTriedLanes) continue;
    constexpr int64_t kRuns = 24;
    constexpr double kMinutes = 1;
    try {
      FixArgs args{.options = options_of_run(report.path, /*steps=*/0),
                   .lane = lane.info.name,
                   .output = {},
                   .folder = search_folder(report.path),
                   .budget = {kRuns, kMinutes},
                   .quiet = true};
      FixFacts facts;
      lane.tried = std::make_shared<const Fix>(run_fix(args, facts).second);
    } catch (const InputError& error) {
      print_note(fmt::format("note: --try: remedies of {} were not run: {}", lane.info.name,
                             join(error.lines(), "; ")));
    }
  }
}

}  // namespace lockstep
