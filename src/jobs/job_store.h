// Results of jobs, each a run file named by the job's hash. A job that is done is not done again,
// also not after a kill: a run file counts only with all its steps.
#pragma once

#include <string>
#include <string_view>

#include "src/jobs/job.h"

namespace lockstep {

// The name of the run that is made of all results, until it moves to its place.
inline constexpr std::string_view kJoined = "joined";

class JobStore {
 public:
  // Makes the folder. Throws: InputError if it cannot, or if it holds anything but results.
  explicit JobStore(std::string folder);
  ~JobStore();  // removes the folder if nothing is in it
  JobStore(const JobStore&) = delete;

  const std::string& folder() const { return folder_; }
  std::string path_of(const Job& job) const;
  bool has(const Job& job) const;
  // Removes a job's result, or what a kill left of it.
  void forget(const Job& job) const;
  // Removes all results, those of earlier jobs included.
  void clear() const;

 private:
  std::string folder_;
};

}  // namespace lockstep
