// Ctrl-C as a flag: the program completes the step in progress and the file, then exits.
#pragma once

#include <atomic>

namespace lockstep {

// From now on SIGINT and SIGTERM set the flag this returns; a second one kills the program at once.
const std::atomic<bool>& catch_stop_signals();
// The signal that set the flag, 0 when none did.
int stop_signal();

}  // namespace lockstep
