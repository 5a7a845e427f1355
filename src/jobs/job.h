// One independent replay: its options, and a hash of all that decides its numbers.
#pragma once

#include <string>

#include "src/train/run_options.h"

namespace lockstep {

struct Job {
  std::string label;   // "blocks.0, step 3, rank 1": for people
  RunOptions options;  // of a capture, whose SHA-256 they name
  std::string hash;    // 16 hexadecimal digits: equal jobs of one build give the same numbers
};

// The place of the capture does not count, the policies' texts do. Throws: InputError: a lane's
// policy cannot be read.
Job make_job(std::string label, RunOptions options);

}  // namespace lockstep
