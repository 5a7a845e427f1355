// See replay_parts.h.
#include "src/cli/replay_parts.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "src/cli/command.h"
#include "src/cli/command_files.h"
#include "src/cli/replay_end.h"
#include "src/cli/terminal/stop_signal.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/jobs/parts_replay.h"
#include "src/record/run/run_lock.h"

namespace lockstep {

int replay_parts_folder(ReplayArgs& args, ProblemList& problems) {
  const std::string path = args.output.empty() ? kDefaultRunFile : args.output;
  check_output(path, args.overwrite ? Replace::kRun : Replace::kNothing, "-o OTHER, or --overwrite",
               problems);
  if (!args.at.empty()) {
    problems.add("--save-values: of one part only", "replay the capture of that part");
  }
  CommandFiles files;
  files.inputs_of(args.options);
  files.run_output("-o", path);
  files.check(problems);
  problems.throw_if_any();
  const PartsIndex index = read_parts_index(args.options.model);
  const auto lock = lock_run(path);
  bool is_described = false;
  const JobWatch watch = {
      .begin =
          [&](const Job& job, size_t number, size_t count) {
            if (args.quiet) return;
            print_note(fmt::format("part {}/{}: {}", number + 1, count, job.label));
          },
      .describe =
          [&](const RunDescription& run) {
            if (!std::exchange(is_described, true)) print_run_notes(run);
          }};
  const PartsReplay wanted = {args.options, path, command_line()};
  try {
    if (!replay_parts(index, wanted, watch, catch_stop_signals())) {
      fmt::print(
          "Stopped. The parts that are complete are kept in {}. To continue, give the same command "
          "again.\n",
          printable(job_folder(path)));
      return kExitSignalBase + stop_signal();
    }
  } catch (const WriteError& error) {
    const std::string hint = write_error_hint(error.error());
    throw InputError(printable(error.what()),
                     (hint.empty() ? "" : hint + "; ") +
                         "then give the same command again: parts that are done are kept");
  }
  for (const PartEntry& entry : index.entries) {
    if (!entry.file.empty()) continue;
    print_note(fmt::format("not captured: {} on rank {}: {}", entry.module, entry.rank, entry.why));
  }
  print_run_end(path, /*finished=*/true, args.quiet);
  return kExitFine;
}

}  // namespace lockstep
