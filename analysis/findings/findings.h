// What went wrong in each lane of a run?
// Decides what broke; the report and the check read this list (the recommendation does not yet).
// finding.h says what a finding is, finding_kinds.h what each kind means.
#pragma once

#include <vector>

#include "analysis/findings/finding_context.h"
#include "src/record/run/run_file.h"

namespace lockstep {

// Not the reference, the truth, the twin or PyTorch's own recorded run: a lane that is judged.
bool is_candidate(const LaneInfo& lane);

// Of one lane, the gravest first. Only candidates have findings. Cost: reads every step of the lane
// and of the reference.
std::vector<Finding> find_findings(const RunFile& run, int lane);

// What a finding's sentence refers to. `has_scaler`: see FindingContext. Valid as long as both.
FindingContext context_of(const RunFile& run, const Finding& finding, bool has_scaler);

}  // namespace lockstep
