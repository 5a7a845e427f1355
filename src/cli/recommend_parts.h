// `lockstep recommend PARTS/`: a format for every part of a large model.
#pragma once

#include <functional>
#include <string>

#include "analysis/parts/part_search.h"

namespace lockstep {

struct RecommendPartsArgs {
  PartSearchOptions search;
  std::string output;  // of the policy; "": it is printed
  bool json = false, quiet = false;
  // Writes --emit's files; may be empty. `run`: a run of the parts.
  std::function<void(const std::string& run, const std::string& policy,
                     const std::string& evidence)>
      emit;
};

// Returns an exit code: kExitInconclusive without an answer.
int recommend_parts(const RecommendPartsArgs& args);

}  // namespace lockstep
