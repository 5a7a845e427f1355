// The answer of `recommend --fix`: one sentence, the lines to add, then what else was tried and
// what could not be.
#pragma once

#include <string>

#include "analysis/fix/fix.h"
#include "reports/writers/text_writer.h"

namespace lockstep {

struct FixFacts {
  std::string model;  // or the capture's path, or the run's
  std::string lane;
  std::string toml = {};  // the policy of the lane
  bool is_capture = false;
  int64_t replays = 0, lanes = 0, read_again = 0;
  std::string folder;  // of the run files
};

std::string fix_text(const Fix& fix, const FixFacts& facts, const TextStyle& style);
std::string fix_json(const Fix& fix, const FixFacts& facts);
// The first sentence alone.
std::string fix_sentence(const Fix& fix, const FixFacts& facts);

}  // namespace lockstep
