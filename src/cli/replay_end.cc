// See replay_end.h.
#include "src/cli/replay_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "emulation/kernels/cuda_devices.h"
#include "reports/run/section.h"
#include "src/cli/command.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/capture/parts_index.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

std::string seed_text(const RunOptions& first, uint64_t seed) {
  if (first.seeds == 1) return "";
  return fmt::format("seed {}/{}", seed - first.seed + 1, first.seeds);
}

void print_run_end(const std::string& path, bool finished, bool quiet) {
  const RunFile first(path, /*allow_empty=*/true);
  const RunOptions& options = first.options();
  if (!finished) {
    const uint64_t seed = first.seeds().back();
    const std::string of = seed_text(options, seed);
    fmt::print(
        "Stopped after step {} of {}{}; {} is intact. To continue:\n  lockstep replay --resume "
        "{}\n",
        RunFile(path, true, seed).steps(), options.steps, of.empty() ? "" : " (" + of + ")",
        printable(path), shell_path(path));
    return;
  }
  if (quiet) return;
  print_text("\n" +
             report_text(read_report(first, ReportSeeds::kAll, ReportPictures::kNone),
                         /*summary_only=*/true, output_style()) +
             "\n");
  const std::string seeds =
      options.seeds == 1 ? "" : fmt::format(" from each of {} seeds", options.seeds);
  const int width = std::min(output_style().width, kTextWidth);
  print_text(cuda_summary());
  const bool are_parts = is_parts_folder(options.model);  // a run that needs no checkpoints
  fmt::print(
      "Recorded {} {}{} in {}. Next:\n  lockstep report {}\n{}", first.steps(),
      are_parts ? "batches of every part" : "steps", seeds, printable(path), shell_path(path),
      are_parts
          ? ""
          : wrap(fmt::format("Only --resume needs {}.state, .state.1 and .progress.json; you may "
                             "delete them.",
                             printable(path)),
                 width));
}

int report_write_error(const WriteError& error, const std::string& path) {
  const std::string hint = write_error_hint(error.error());
  std::string text =
      "lockstep: " + printable(error.what()) + (hint.empty() ? "" : "; " + hint) + "\n";
  if (error.has_steps()) {
    text +=
        "The steps recorded so far are intact. To continue, once that is done:\n"
        "  lockstep replay --resume " +
        shell_path(path) + "\n";
  }
  std::fputs(text.c_str(), stderr);
  return kExitUsage;
}

void print_run_notes(const RunDescription& run) {
  for (const LaneDescription& lane : run.lanes) {
    for (const std::string& note : lane.policy.notes) {
      print_note("note: lane " + lane.name + ": " + note);
    }
    for (const std::string& warning : lane.warnings) {
      print_note("warning: lane " + lane.name + ": " + warning);
    }
  }
}

}  // namespace lockstep
