// The signal handler.
#include "src/cli/terminal/stop_signal.h"

namespace lockstep {
namespace {

std::atomic<bool> stop_requested{false};
std::atomic<int> received{0};

void on_signal(int signal) {
  received = signal;
  stop_requested = true;
}

}  // namespace

const std::atomic<bool>& catch_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);  // the second signal kills
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return stop_requested;
}

int stop_signal() {
  return received;
}

void ignore_write_signals() {
  for (const int signal : kWriteSignals) std::signal(signal, SIG_IGN);
}

}  // namespace lockstep
