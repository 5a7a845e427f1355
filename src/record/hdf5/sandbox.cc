#include "src/record/hdf5/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <new>
#include <optional>

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

// Bytes of address space (0) or resident (1) of a process, 0 if that cannot be read.
uint64_t memory_of(pid_t process, int which) {
  std::ifstream file(fmt::format("/proc/{}/statm", process));
  uint64_t pages[2] = {};
  file >> pages[0] >> pages[1];
  return file ? pages[which] * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

void set_limit(__rlimit_resource resource, uint64_t value) {
  rlimit limit = {};
  getrlimit(resource, &limit);
  limit.rlim_cur = std::min<rlim_t>(value, limit.rlim_max);
  setrlimit(resource, &limit);
}

// A shell sends Ctrl-C to the child, too; its parent decides what to do. The child dies with it.
void take_own_signals(pid_t parent) {
  for (const int signal : {SIGPIPE, SIGXCPU, SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal, SIG_DFL);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitWork);  // the parent ended before the line above
}

// Sends everything. Returns: false when the other end is closed.
bool send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// Everything the child does. Never returns.
[[noreturn]] void be_child(int socket, pid_t parent, const SandboxLimits& limits,
                           const Sandbox::Work& work) {
  take_own_signals(parent);
  if (!kIsSanitized) {
    const int nowhere = open("/dev/null", O_WRONLY);
    if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);
    const uint64_t had = memory_of(getpid(), 0);  // 0: there is no /proc
    if (had > 0) set_limit(RLIMIT_AS, had + limits.memory_bytes);
  }
  // Not the locks of this process's files, nor the sockets of other children.
  constexpr unsigned kFirst = STDERR_FILENO + 1;
  const auto own = static_cast<unsigned>(socket);
  if (own > kFirst) close_range(kFirst, own - 1, 0);
  close_range(own + 1, ~0U, 0);
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_CPU, static_cast<uint64_t>(std::ceil(limits.seconds)));
  bool is_served = false;
  const auto read_all = [&](char* into, size_t count) {
    if (!is_served) {  // the clock limits each further answer
      is_served = true;
      set_limit(RLIMIT_CPU, RLIM_INFINITY);
    }
    size_t had = 0;
    while (had < count) {
      const ssize_t got = ::read(socket, into + had, count - had);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      had += static_cast<size_t>(got);
    }
    return had;
  };
  const auto write_all = [&](std::string_view bytes) {
    if (!send_all(socket, bytes)) _exit(kExitWork);
  };
  try {
    work(read_all, write_all);
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

using Cause = SandboxError::Cause;

// How a child ended; nothing: without a fault.
std::optional<SandboxError> exit_fault(int status, const SandboxLimits& limits) {
  if (WIFEXITED(status)) {
    const int code = WEXITSTATUS(status);
    if (code == 0) return std::nullopt;
    if (code == kExitMemory) return SandboxError(memory_text(limits), Cause::kInput);
    return SandboxError(fmt::format("it ended with exit code {}", code), Cause::kInput);
  }
  const int signal = WTERMSIG(status);
  if (signal == SIGXCPU) {
    return SandboxError(fmt::format("it took more than {} s of processor time", limits.seconds),
                        Cause::kInput);
  }
  if (signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
    return SandboxError(
        fmt::format("it was stopped from outside ({}), or the machine ran out of memory",
                    strsignal(signal)),
        Cause::kMachine);
  }
  return SandboxError(fmt::format("it crashed ({})", strsignal(signal)), Cause::kInput);
}

std::string clock_text(const SandboxLimits& limits) {
  return fmt::format("it took more than {} s", limits.clock_seconds);
}

}  // namespace

Sandbox::Sandbox(const SandboxLimits& limits, const Work& work) : limits_(limits) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw SandboxError(fmt::format("no socket: {}", std::strerror(errno)), Cause::kMachine);
  }
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child < 0) {
    const int why = errno;
    close(ends[0]), close(ends[1]);
    throw SandboxError(fmt::format("no process: {}", std::strerror(why)), Cause::kMachine);
  }
  if (child == 0) {
    close(ends[0]);
    be_child(ends[1], self, limits, work);
  }
  close(ends[1]);
  child_ = child;
  socket_ = ends[0];
  had_ = memory_of(self, 1);
  constexpr size_t kChunk = 1 << 18;
  chunk_.resize(kChunk);
  begin_answer();
}

Sandbox::~Sandbox() {
  kill_child();
  close(socket_);
}

void Sandbox::begin_answer() {
  total_ = 0;
  end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(limits_.clock_seconds));
}

void Sandbox::kill_child() {
  if (child_ < 0) return;
  kill(child_, SIGKILL);
  while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
  child_ = -1;
}

void Sandbox::fail(const std::string& why, Cause cause) {
  kill_child();
  throw SandboxError(why, cause);
}

void Sandbox::ask(std::string_view request) {
  begin_answer();
  if (child_ < 0 || send_all(socket_, request)) return;
  await_end();
  fail("it ended early", Cause::kInput);
}

bool Sandbox::fill() {
  for (;;) {
    pollfd waiting{socket_, POLLIN, 0};
    const int ready = poll(&waiting, 1, kWatchEveryMs);
    if (Clock::now() > end_) fail(clock_text(limits_), Cause::kInput);
    if (kIsSanitized && child_ > 0 && memory_of(child_, 1) > had_ + limits_.memory_bytes) {
      fail(memory_text(limits_), Cause::kInput);
    }
    if (ready <= 0) continue;
    const ssize_t got = ::read(socket_, chunk_.data(), chunk_.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {  // a child that closed its end has ended or is about to
      await_end();
      return false;
    }
    next_ = 0;
    held_ = static_cast<size_t>(got);
    total_ += held_;
    if (total_ > limits_.output_bytes) {
      fail(fmt::format("it holds more than {} bytes", limits_.output_bytes), Cause::kInput);
    }
    return true;
  }
}

size_t Sandbox::read(char* into, size_t count) {
  size_t had = 0;
  while (had < count) {
    if (next_ == held_ && !fill()) break;
    const size_t piece = std::min(count - had, held_ - next_);
    std::memcpy(into + had, chunk_.data() + next_, piece);
    next_ += piece;
    had += piece;
  }
  return had;
}

void Sandbox::finish() {
  shutdown(socket_, SHUT_WR);
  next_ = held_;
  while (fill()) next_ = held_;
}

// After a fault a child may still run.
void Sandbox::await_end() {
  for (; child_ >= 0; poll(nullptr, 0, 1)) {
    if (Clock::now() > end_) fail(clock_text(limits_), Cause::kInput);
    int status = 0;
    const pid_t found = waitpid(child_, &status, WNOHANG);
    if (found == 0 || (found < 0 && errno == EINTR)) continue;
    const bool is_ours = found == child_;
    child_ = -1;
    if (!is_ours) throw SandboxError("its end was not reported", Cause::kMachine);
    if (const auto why = exit_fault(status, limits_)) throw *why;
  }
}

}  // namespace lockstep
