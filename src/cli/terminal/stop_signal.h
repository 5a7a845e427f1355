// Signals. Ctrl-C as a flag: the program completes the step in progress and the file, then exits.
// Signals of failed writes as errors of those writes.
#pragma once

#include <atomic>
#include <csignal>

namespace lockstep {

// From now on SIGINT and SIGTERM set the flag this returns; a second one kills the program at once.
const std::atomic<bool>& catch_stop_signals();
// The signal that set the flag, 0 when none did.
int stop_signal();

// By default these end a program that writes into a pipe without a reader, or past the limit on the
// size of files.
inline constexpr int kWriteSignals[] = {SIGPIPE, SIGXFSZ};
// From now on such a write fails, with EPIPE or EFBIG.
void ignore_write_signals();

}  // namespace lockstep
