// lockstep replay FOLDER: every part of a folder that lockstep_capture.Parts wrote, one after the
// other, into one run file.
#pragma once

#include "src/cli/arguments/replay_arguments.h"

namespace lockstep {

// As start_run.
int replay_parts_folder(ReplayArgs& args, ProblemList& problems);

}  // namespace lockstep
