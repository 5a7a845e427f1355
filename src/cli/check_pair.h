// A and B of one job: two builds of Lockstep, two captures, or two run files. The environment is
// the same on both sides, so that what differs is the change. A's ensemble gives the limits.
#pragma once

#include <string>

#include "analysis/check/check_result.h"
#include "analysis/check/ensemble_runs.h"

namespace lockstep {

struct PairRequest {
  std::string a, b;     // programs, captures or run files; both of one kind
  std::string subject;  // of programs: what they replay
  std::string replay;   // options of that replay, as on a command line
  int64_t members = 0;
};

// Throws: InputError, EnsembleStopped, WriteError.
CheckResult check_pair(const PairRequest& request, EnsembleRuns& runs, const CheckOptions& options);

}  // namespace lockstep
