// Whether a run was recorded to its end.
#pragma once

namespace lockstep {

class RunFile;

// All steps of its options, and the sums over them, which are written after the last step: a kill
// may come between. Evaluations do not count.
bool has_all_steps(const RunFile& run);

}  // namespace lockstep
