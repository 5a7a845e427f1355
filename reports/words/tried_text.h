// What came of the remedies of a lane that were run: one sentence, for the first screen.
#pragma once

#include <string>
#include <vector>

#include "analysis/fix/fix.h"

namespace lockstep {

// "fc1 linear in fp32, and eps = 1e-4"
std::string edits_text(const std::vector<RemedyEdit>& edits);

// "Tried: fc1 linear in fp32 removes the fault: gap at equal weights 61% -> 0.01%, loss 1.5, fp32
// 1.5."; "": nothing was run.
std::string tried_text(const Fix& fix);

// The suggested remedies that are no edit of policy, options or graph.
std::vector<std::string> untested_remedies(const Fix& fix);

}  // namespace lockstep
