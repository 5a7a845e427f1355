// See recommend_fix.h.
#include "src/cli/recommend_fix.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "analysis/candidates/policy_edit.h"
#include "analysis/fix/fix.h"
#include "reports/advice/fix_text.h"
#include "src/cli/arguments/capture_argument.h"
#include "src/cli/arguments/search_arguments.h"
#include "src/cli/command.h"
#include "src/cli/terminal/progress.h"
#include "src/cli/terminal/stop_signal.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/error.h"
#include "src/core/text_file.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

RunOptions options_of_run(const std::string& path, int64_t steps) {
  RunOptions options = RunFile(path).options();
  std::error_code error;
  if (!options.capture_hash.empty()) {
    if (!std::filesystem::exists(options.model, error)) {
      throw InputError(fmt::format("{}: its capture '{}' is not there", path, options.model),
                       "run this where that path leads to it, or name the capture: lockstep "
                       "recommend CAPTURE --fix LANE");
    }
    const std::string now = read_capture(options.model, CaptureUse::kReplay).sha256;
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

int recommend_fix(FixArgs& args) {
  RunOptions& options = args.options;
  FixFacts facts{.model = options.model,
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
  const FixLane lane = fix_lane(args.lane, options, capture ? &*capture : nullptr);
  capture.reset();
  options.held_out = false;  // losses are judged
  const auto watch = [&]() -> std::unique_ptr<Observer> {
    if (args.quiet || args.json) return nullptr;
    return std::make_unique<Progress>(0, options.steps, "");
  };
  TrialRuns runs(options, args.folder, LOCKSTEP_VERSION, catch_stop_signals(), watch);
  std::optional<Fix> fix;
  try {
    fix.emplace(find_fix(runs, lane, args.budget));
  } catch (const SearchStopped&) {
    return search_stopped(args.folder);
  }
  facts.replays = runs.replays();
  facts.lanes = runs.lanes();
  facts.read_again = runs.read_again();
  print_text(args.json ? fix_json(*fix, facts) : fix_text(*fix, facts, output_style()));
  if (!args.output.empty()) {
    if (fix->answer == Fix::Answer::kFixed) {
      const std::string name = std::filesystem::path(args.output).stem().string();
      write_text_file_atomically(args.output, edited_policy(lane.toml, name, fix->fix().edits));
      if (!args.json) print_line("Wrote " + args.output + ".");
    } else {
      fmt::print(stderr, "lockstep: note: there is no policy to write\n");
    }
  }
  const bool answered =
      fix->answer == Fix::Answer::kFixed || fix->answer == Fix::Answer::kNothingWrong;
  return answered ? kExitFine : kExitInconclusive;
}

}  // namespace lockstep
