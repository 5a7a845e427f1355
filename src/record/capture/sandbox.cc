#include "src/record/capture/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <exception>
#include <fstream>
#include <new>
#include <stdexcept>
#include <vector>

namespace lockstep {
namespace {

// AddressSanitizer reserves terabytes of addresses and writes its findings to stderr.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

constexpr int kExitMemory = 41, kExitWork = 42;  // of the child
constexpr int kWatchEveryMs = 20;
constexpr uint64_t kMiB = 1 << 20;

using Clock = std::chrono::steady_clock;

// Bytes of address space (0) or resident (1) of a process, 0 if that cannot be read.
uint64_t memory_of(pid_t process, int which) {
  std::ifstream file(fmt::format("/proc/{}/statm", process));
  uint64_t pages[2] = {};
  file >> pages[0] >> pages[1];
  return file ? pages[which] * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

// `grace`: how far the limit that kills is above the limit that sends a signal.
void set_limit(int resource, uint64_t value, uint64_t grace = 0) {
  const rlimit limit{static_cast<rlim_t>(value), static_cast<rlim_t>(value + grace)};
  setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

// Gives the child default signal handlers, and lets it die with its parent.
void take_default_signals(pid_t parent) {
  for (const int signal :
       {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXCPU, SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitWork);  // the parent ended before the line above
}

// Everything the child does. Never returns.
[[noreturn]] void be_child(int out, pid_t parent, const SandboxLimits& limits,
                           const std::function<void(const SandboxWrite&)>& work) {
  take_default_signals(parent);
  if (!kIsSanitized) {
    const int nowhere = open("/dev/null", O_WRONLY);
    if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);
    set_limit(RLIMIT_AS, memory_of(getpid(), 0) + limits.memory_bytes);
  }
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_CPU, static_cast<uint64_t>(std::ceil(limits.seconds)), /*grace=*/1);
  const auto write_all = [&](std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = write(out, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) _exit(kExitWork);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  };
  try {
    work(write_all);
  } catch (const std::bad_alloc&) {
    _exit(kExitMemory);
  } catch (...) {
    _exit(kExitWork);
  }
  _exit(0);
}

std::string memory_text(const SandboxLimits& limits) {
  return fmt::format("it needed more than {} MiB of memory", limits.memory_bytes / kMiB);
}

// Describes how a child ended; empty: without a fault.
std::string fault(int status, const SandboxLimits& limits) {
  if (WIFEXITED(status)) {
    const int code = WEXITSTATUS(status);
    if (code == 0) return "";
    if (code == kExitMemory) return memory_text(limits);
    return fmt::format("it ended with exit code {}", code);
  }
  const int signal = WTERMSIG(status);
  if (signal == SIGXCPU) {
    return fmt::format("it took more than {} s of processor time", limits.seconds);
  }
  if (signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
    return fmt::format("it was stopped from outside ({}), or the machine ran out of memory",
                       strsignal(signal));
  }
  return fmt::format("it crashed ({})", strsignal(signal));
}

std::string clock_text(const SandboxLimits& limits) {
  return fmt::format("it took more than {} s", limits.clock_seconds);
}

// The limit for which a child is given up.
struct LimitMet : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads what the child writes until it closes the pipe. Throws: LimitMet.
class Output {
 public:
  Output(pid_t child, int in, const SandboxLimits& limits, Clock::time_point end)
      : child_(child), in_(in), limits_(limits), end_(end), chunk_(kChunk) {}

  bool at_end() const { return at_end_; }

  size_t read(char* into, size_t count) {
    size_t had = 0;
    while (had < count) {
      if (next_ == held_) fill();
      if (at_end_) break;
      const size_t piece = std::min(count - had, held_ - next_);
      std::memcpy(into + had, chunk_.data() + next_, piece);
      next_ += piece;
      had += piece;
    }
    return had;
  }

 private:
  void fill() {
    while (!at_end_) {
      pollfd waiting{in_, POLLIN, 0};
      const int ready = poll(&waiting, 1, kWatchEveryMs);
      if (Clock::now() > end_) throw LimitMet(clock_text(limits_));
      if (kIsSanitized && memory_of(child_, 1) > had_ + limits_.memory_bytes) {
        throw LimitMet(memory_text(limits_));
      }
      if (ready <= 0) continue;
      const ssize_t got = ::read(in_, chunk_.data(), chunk_.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        at_end_ = true;
        return;
      }
      next_ = 0;
      held_ = static_cast<size_t>(got);
      total_ += held_;
      if (total_ > limits_.output_bytes) {
        throw LimitMet(fmt::format("it holds more than {} bytes", limits_.output_bytes));
      }
      return;
    }
  }

  static constexpr size_t kChunk = 1 << 16;  // a pipe's capacity
  pid_t child_;
  int in_;
  const SandboxLimits& limits_;
  Clock::time_point end_;
  uint64_t had_ = memory_of(getpid(), 1);
  std::vector<char> chunk_;
  size_t next_ = 0, held_ = 0;  // of chunk_
  uint64_t total_ = 0;
  bool at_end_ = false;
};

// A child that closed its pipe has ended or is about to; after a fault it may still run.
std::string await_end(pid_t child, const SandboxLimits& limits, Clock::time_point end,
                      bool& has_ended) {
  for (; Clock::now() <= end; poll(nullptr, 0, 1)) {
    int status = 0;
    const pid_t found = waitpid(child, &status, WNOHANG);
    if (found == 0 || (found < 0 && errno == EINTR)) continue;
    has_ended = true;
    return found == child ? fault(status, limits) : "another process waited for it";
  }
  return clock_text(limits);
}

}  // namespace

void run_sandboxed(const SandboxLimits& limits,
                   const std::function<void(const SandboxWrite& write)>& work,
                   const std::function<void(const SandboxRead& read)>& use) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw std::runtime_error(fmt::format("no pipe: {}", std::strerror(errno)));
  }
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child < 0) {
    close(ends[0]), close(ends[1]);
    throw std::runtime_error(fmt::format("no process: {}", std::strerror(errno)));
  }
  if (child == 0) {
    close(ends[0]);
    be_child(ends[1], self, limits, work);
  }
  close(ends[1]);
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(limits.clock_seconds));
  Output output(child, ends[0], limits, end);
  std::string problem;
  std::exception_ptr thrown;  // by `use`
  try {
    use([&](char* into, size_t count) { return output.read(into, count); });
  } catch (const LimitMet& error) {
    problem = error.what();
  } catch (const std::bad_alloc&) {
    problem = memory_text(limits);
  } catch (...) {
    thrown = std::current_exception();
  }
  close(ends[0]);
  bool has_ended = false;
  // The child's end explains data that break off.
  if (problem.empty() && (thrown == nullptr || output.at_end())) {
    problem = await_end(child, limits, end, has_ended);
  }
  if (!has_ended) {
    kill(child, SIGKILL);
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (!problem.empty()) throw std::runtime_error(problem);
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

}  // namespace lockstep
