// Who runs jobs. The only executor so far is this process, one job after the other, each with all
// threads: so the memory is that of the largest job.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "src/jobs/job.h"
#include "src/jobs/job_store.h"
#include "src/train/observer.h"

namespace lockstep {

// What the caller sees of the jobs.
struct JobWatch {
  // Before a job that is run; `number` from 0, of `count`.
  std::function<void(const Job& job, size_t number, size_t count)> begin;
  std::function<void(const RunDescription&)> describe;  // before its first step
};

// Runs the jobs whose results the store lacks. `command_line`: for their run files. Returns: false
// when `stop` was set; the results so far are kept. Throws: InputError: a job is not possible;
// WriteError.
bool run_jobs_here(const std::vector<Job>& jobs, const JobStore& store,
                   const std::string& command_line, const JobWatch& watch,
                   const std::atomic<bool>& stop);

}  // namespace lockstep
