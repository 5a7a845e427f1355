// See parts_replay.h.
#include "src/jobs/parts_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "src/core/error.h"
#include "src/jobs/joined_run.h"
#include "src/policy/policy.h"
#include "src/record/hdf5/file_block.h"
#include "src/record/run/run_writer.h"

namespace lockstep {
namespace {

std::string batch_of(const PartEntry& entry) {
  return fmt::format("step {} rank {}", entry.step, entry.rank);
}

// A capture larger than this is replayed lane by lane, each next to the reference: all lanes at
// once would each hold weights and gradients. Of a block of 218 million parameters in BF16 (0.88
// GB) six took 12.5 GB.
constexpr uintmax_t kMostForAllLanes = uintmax_t{256} << 20;

std::vector<Job> jobs_of(const PartEntry& entry, RunOptions options) {
  options.model = entry.file;
  options.capture_hash = check_file_block(entry.file, kCaptureBlock).sha256;
  options.part.clear();  // what the capture says
  options.steps = 0;     // all that it has
  const std::string label = fmt::format("{}, {}", entry.module, batch_of(entry));
  std::error_code error;
  if (std::filesystem::file_size(entry.file, error) <= kMostForAllLanes) {
    return {make_job(label, std::move(options))};
  }
  std::vector<Job> jobs;
  const std::vector<std::string> lanes = std::move(options.lanes);
  for (const std::string& lane : lanes) {
    if (lane == kReferenceLane) continue;
    options.lanes = {std::string(kReferenceLane), lane};
    jobs.push_back(make_job(fmt::format("{}, {}", label, lane), options));
  }
  if (jobs.empty()) {
    options.lanes = lanes;
    jobs.push_back(make_job(label, std::move(options)));
  }
  return jobs;
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
  std::vector<size_t> counts;  // of each run's jobs
  ProblemList problems(fmt::format("parts '{}'", index.folder));
  for (const PartEntry& entry : index.entries) {
    if (entry.file.empty()) continue;
    collect_problems(problems, [&] {
      const std::vector<Job> own = jobs_of(entry, wanted.options);
      // Ranks that captured the very same are one batch.
      if (std::ranges::find(jobs, own.front().hash, &Job::hash) != jobs.end()) return;
      jobs.insert(jobs.end(), own.begin(), own.end());
      counts.push_back(own.size());
      runs.push_back({entry.module, batch_of(entry), {}});
    });
  }
  problems.throw_if_any();
  if (jobs.empty()) {
    throw InputError(fmt::format("parts '{}': none was captured", index.folder),
                     "parts.json says why");
  }
  const JobStore store(job_folder(wanted.path));
  if (!run_jobs_here(jobs, store, wanted.command_line, watch, stop)) return false;
  for (size_t i = 0, job = 0; i < runs.size(); ++i) {
    for (size_t end = job + counts[i]; job < end; ++job) {
      runs[i].paths.push_back(store.path_of(jobs[job]));
    }
  }
  // Under another name until it is whole: a kill leaves the results, and nothing at `path`.
  const std::string whole = store.folder() + "/" + std::string(kJoined) + ".h5";
  {
    JoinedRun joined(std::move(runs));
    joined.describe(index.folder, hash);
    RunFileWriter writer(whole, wanted.command_line, /*overwrite=*/true);
    joined.tell(writer);
  }
  std::error_code error;
  std::filesystem::rename(whole, wanted.path, error);
  if (error) {
    throw InputError(fmt::format("'{}': cannot be made: {}", wanted.path, error.message()),
                     "choose another -o");
  }
  store.clear();
  return true;
}

}  // namespace lockstep
