// Which sites are surely the same in two runs whose forward passes have other ops?
// A rewrite keeps the mathematics and changes what is in between: partial sums, moved axes, masks.
// What both programs share is judged (the loss, every parameter's gradient and update, layers that
// have the same ops and sites on both sides); a pair inside of rewritten code is only a likely one.
#pragma once

#include <vector>

#include "analysis/pair/run_match.h"

namespace lockstep {

struct SharedPlaces {
  bool has_changed_code = false;  // an op of the forward pass has no counterpart in its layer
  // By site of the baseline. `certain`: the structure alone makes the pair certain. `doubtful`: a
  // pair of two layers, or of views, which all look alike: it holds only if the values agree.
  std::vector<bool> certain = {}, doubtful = {};
};
SharedPlaces shared_places(const RunFacts& before, const RunFacts& after, const RunMatch& match);

}  // namespace lockstep
