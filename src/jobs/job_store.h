// Results of jobs, each a run file named by the job's hash. A job that is done is not done again,
// also not after a kill: a run file counts only with all its steps.
#pragma once

#include <string>
#include <vector>

#include "src/jobs/job.h"

namespace lockstep {

class JobStore {
 public:
  // Makes the folder. Throws: InputError if it cannot.
  explicit JobStore(std::string folder);

  const std::string& folder() const { return folder_; }
  std::string path_of(const Job& job) const;
  bool has(const Job& job) const;
  // What a kill left of a job. Nothing else in the folder is touched.
  void forget(const Job& job) const;
  // Removes the jobs' results, and the folder if nothing else is in it.
  void remove(const std::vector<Job>& jobs) const;

 private:
  std::string folder_;
};

}  // namespace lockstep
