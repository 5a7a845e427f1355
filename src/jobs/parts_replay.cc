// See parts_replay.h.
#include "src/jobs/parts_replay.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "src/core/error.h"
#include "src/jobs/joined_run.h"
#include "src/record/hdf5/file_block.h"
#include "src/record/run/run_writer.h"

namespace lockstep {
namespace {

std::string batch_of(const PartEntry& entry) {
  return fmt::format("rank {}, step {}", entry.rank, entry.step);
}

Job job_of(const PartEntry& entry, RunOptions options) {
  options.model = entry.file;
  options.capture_hash = check_file_block(entry.file, kCaptureBlock).sha256;
  options.part.clear();  // what the capture says
  options.steps = 0;     // all that it has
  return make_job(fmt::format("{}, {}", entry.module, batch_of(entry)), std::move(options));
}

}  // namespace

std::string job_folder(const std::string& path) {
  return path + ".parts";
}

bool replay_parts(const PartsIndex& index, const PartsReplay& wanted, const JobWatch& watch,
                  const std::atomic<bool>& stop) {
  const std::string hash = parts_hash(index);
  if (!wanted.options.capture_hash.empty() && wanted.options.capture_hash != hash) {
    throw InputError(fmt::format("parts '{}': are not those of the recorded run", index.folder),
                     "they have been captured again since; replay them to a new run file");
  }
  std::vector<Job> jobs;
  std::vector<PartRun> runs;
  ProblemList problems(fmt::format("parts '{}'", index.folder));
  for (const PartEntry& entry : index.entries) {
    if (entry.file.empty()) continue;
    collect_problems(problems, [&] {
      jobs.push_back(job_of(entry, wanted.options));
      runs.push_back({entry.module, batch_of(entry), ""});
    });
  }
  problems.throw_if_any();
  if (jobs.empty()) {
    throw InputError(fmt::format("parts '{}': none was captured", index.folder),
                     "parts.json says why");
  }
  const JobStore store(job_folder(wanted.path));
  if (!run_jobs_here(jobs, store, wanted.command_line, watch, stop)) return false;
  for (size_t i = 0; i < jobs.size(); ++i) runs[i].path = store.path_of(jobs[i]);
  {
    JoinedRun joined(std::move(runs));
    joined.describe(index.folder, hash);
    RunFileWriter writer(wanted.path, wanted.command_line, wanted.overwrite);
    joined.tell(writer);
  }
  for (const Job& job : jobs) store.forget(job);
  return true;
}

}  // namespace lockstep
