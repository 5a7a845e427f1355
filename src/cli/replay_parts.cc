// See replay_parts.h.
#include "src/cli/replay_parts.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "src/cli/command.h"
#include "src/cli/command_files.h"
#include "src/cli/replay_end.h"
#include "src/cli/terminal/stop_signal.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/text.h"
#include "src/jobs/executor.h"
#include "src/jobs/joined_run.h"
#include "src/record/capture/parts_index.h"
#include "src/record/hdf5/file_block.h"
#include "src/record/run/run_lock.h"
#include "src/record/run/run_writer.h"

namespace lockstep {
namespace {

constexpr std::string_view kResults = ".parts";  // of the parts, next to the run file

std::string batch_of(const PartEntry& entry) {
  return fmt::format("rank {}, step {}", entry.rank, entry.step);
}

// A job for every part that was captured.
std::vector<Job> jobs_of(const PartsIndex& index, const RunOptions& options,
                         std::vector<PartEntry>& captured, ProblemList& problems) {
  std::vector<Job> jobs;
  for (const PartEntry& entry : index.entries) {
    if (entry.file.empty()) continue;
    collect_problems(problems, [&] {
      RunOptions of_part = options;
      of_part.model = entry.file;
      of_part.capture_hash = check_file_block(entry.file, kCaptureBlock).sha256;
      jobs.push_back(make_job(fmt::format("{}, {}", entry.module, batch_of(entry)), of_part));
      captured.push_back(entry);
    });
  }
  return jobs;
}

}  // namespace

int replay_parts(ReplayArgs& args, ProblemList& problems) {
  const std::string& folder = args.options.model;
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
  const PartsIndex index = read_parts_index(folder);
  std::vector<PartEntry> captured;
  const std::vector<Job> jobs = jobs_of(index, args.options, captured, problems);
  problems.throw_if_any();
  if (jobs.empty()) {
    throw InputError(fmt::format("folder '{}': no part was captured", folder),
                     fmt::format("`lockstep verify {}` says why", shell_path(folder)));
  }
  const auto lock = lock_run(path);
  const JobStore store(path + std::string(kResults));
  const auto& stop = catch_stop_signals();
  bool is_described = false;
  const JobWatch watch = {
      .begin =
          [&](const Job& job, size_t number) {
            if (args.quiet) return;
            print_note(fmt::format("part {}/{}: {}", number + 1, jobs.size(), job.label));
          },
      .describe =
          [&](const RunDescription& run) {
            if (!std::exchange(is_described, true)) print_run_notes(run);
          }};
  try {
    if (!run_jobs_here(jobs, store, command_line(), watch, stop)) {
      fmt::print(
          "Stopped; the parts that are complete are kept in {}. To continue, give the same "
          "command again.\n",
          printable(store.folder()));
      return kExitSignalBase + stop_signal();
    }
    std::vector<PartRun> runs;
    for (size_t i = 0; i < jobs.size(); ++i) {
      runs.push_back({captured[i].module, batch_of(captured[i]), store.path_of(jobs[i])});
    }
    JoinedRun joined(std::move(runs));
    joined.describe(folder, parts_hash(index));
    RunFileWriter writer(path, command_line(), args.overwrite);
    joined.tell(writer);
  } catch (const WriteError& error) {
    return report_write_error(error, path);
  }
  store.remove(jobs);
  for (const PartEntry& entry : index.entries) {
    if (!entry.file.empty()) continue;
    print_note(fmt::format("not captured: {} on rank {}: {}", entry.module, entry.rank, entry.why));
  }
  print_run_end(path, /*finished=*/true, args.quiet);
  return kExitFine;
}

}  // namespace lockstep
