// The errors of run_sandboxed for a child that crashes, hangs, uses up memory, breaks off its
// answer, or is stopped.
#include "src/record/capture/sandbox.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "tests/record/capture/sandbox_text.h"

namespace lockstep {
namespace {

using testing::sandbox_text;

using Work = std::function<void(const SandboxWrite&)>;

// Enough time on a busy machine and under a sanitizer: another limit must be met first.
constexpr SandboxLimits kSmall{
    .seconds = 120, .clock_seconds = 600, .memory_bytes = 256 << 20, .output_bytes = 4 << 20};

// The message of the exception from run_sandboxed, "" if there is none.
std::string fault_of(const Work& work, const SandboxLimits& limits = kSmall) {
  try {
    sandbox_text(limits, work);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

[[noreturn]] void sleep_forever() {
  for (;;) pause();
}

// Allocates and uses memory until it is stopped.
[[noreturn]] void eat_memory() {
  constexpr size_t kPiece = 1 << 20;
  std::vector<std::vector<char>> eaten;
  for (;;) eaten.emplace_back(kPiece, 'x');
}

}  // namespace

TEST_CASE("a child's answer arrives complete") {
  CHECK(sandbox_text(kSmall, [](const SandboxWrite&) {}) == "");
  const std::string piece(100'000, 'p');  // more than a pipe holds
  std::string expected;
  for (int i = 0; i < 30; ++i) expected += piece;
  CHECK(sandbox_text(kSmall, [&](const SandboxWrite& write) {
          for (int i = 0; i < 30; ++i) write(piece);
        }) == expected);
}

TEST_CASE("a child that crashes") {
  CHECK(fault_of([](const SandboxWrite&) { std::abort(); }) == "it crashed (Aborted)");
  CHECK(fault_of([](const SandboxWrite&) { raise(SIGSEGV); }) == "it crashed (Segmentation fault)");
  CHECK(fault_of([](const SandboxWrite&) { raise(SIGFPE); }) ==
        "it crashed (Floating point exception)");
  CHECK(fault_of([](const SandboxWrite&) { throw std::logic_error("no"); }) ==
        "it ended with exit code 42");
}

TEST_CASE("a child that breaks off its answer gives no answer") {
  CHECK(fault_of([](const SandboxWrite& write) {
          write("half");
          raise(SIGSEGV);
        }) == "it crashed (Segmentation fault)");
  CHECK(fault_of([](const SandboxWrite& write) {
          write("half");
          _exit(3);
        }) == "it ended with exit code 3");
}

TEST_CASE("a child that hangs") {
  CHECK(fault_of(
            [](const SandboxWrite&) {
              for (volatile uint64_t turns = 0;;) turns = turns + 1;
            },
            {.seconds = 1, .clock_seconds = 600}) == "it took more than 1 s of processor time");
  constexpr SandboxLimits kShort{.clock_seconds = 0.25};
  const std::string waited = "it took more than 0.25 s";
  CHECK(fault_of([](const SandboxWrite&) { sleep_forever(); }, kShort) == waited);
  // A child that lost its end of the pipe is not awaited forever.
  CHECK(fault_of(
            [](const SandboxWrite&) {
              for (int file = 3; file < 1024; ++file) close(file);
              sleep_forever();
            },
            kShort) == waited);
}

TEST_CASE("a child that needs too much") {
  CHECK(fault_of([](const SandboxWrite&) { eat_memory(); }) ==
        "it needed more than 256 MiB of memory");
  CHECK(fault_of([](const SandboxWrite& write) { write(std::string(5 << 20, 'x')); }) ==
        "it holds more than 4194304 bytes");
}

TEST_CASE("a child that is stopped from outside") {
  for (const auto& [number, name] : {std::pair{SIGTERM, "Terminated"}, {SIGKILL, "Killed"}}) {
    CHECK(fault_of([number = number](const SandboxWrite&) { raise(number); }) ==
          std::string("it was stopped from outside (") + name +
              "), or the machine ran out of memory");
  }
}

namespace {

// A program whose child sleeps, in a process group of its own as a shell starts one. It ends by
// `stop`; returns its status after the child has ended too, when no process holds the pipe.
int status_when_stopped(const std::function<void(pid_t program)>& stop, void (*on_interrupt)(int)) {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  const pid_t program = fork();
  REQUIRE(program >= 0);
  if (program == 0) {
    setpgid(0, 0);
    signal(SIGINT, on_interrupt);
    close(ends[0]);
    const std::string fault = fault_of(
        [&](const SandboxWrite&) {
          if (write(ends[1], "r", 1) == 1) sleep_forever();
        },
        {.clock_seconds = 60});
    _exit(fault.starts_with("it was stopped from outside (Interrupt)") ? 7 : 8);
  }
  close(ends[1]);
  char ready = 0;
  CHECK(read(ends[0], &ready, 1) == 1);
  stop(program);
  constexpr int kPatienceMs = 60'000;  // on a busy machine
  pollfd end{ends[0], POLLIN, 0};
  REQUIRE(poll(&end, 1, kPatienceMs) == 1);
  CHECK(read(ends[0], &ready, 1) == 0);
  close(ends[0]);
  int status = 0;
  CHECK(waitpid(program, &status, 0) == program);
  return status;
}

}  // namespace

TEST_CASE("Ctrl-C ends the program and the child") {
  const auto interrupt = [](pid_t program) { kill(-program, SIGINT); };
  const int plain = status_when_stopped(interrupt, SIG_DFL);
  CHECK(WIFSIGNALED(plain));
  CHECK(WTERMSIG(plain) == SIGINT);
  // A program that catches it gets the error that its child was stopped, not that the file is bad.
  const int caught = status_when_stopped(interrupt, [](int) {});
  CHECK(WIFEXITED(caught));
  CHECK(WEXITSTATUS(caught) == 7);
}

TEST_CASE("a child does not outlive its program") {
  const int status = status_when_stopped([](pid_t program) { kill(program, SIGKILL); }, SIG_DFL);
  CHECK(WIFSIGNALED(status));
}

}  // namespace lockstep
