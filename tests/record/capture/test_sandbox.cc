// The errors of Sandbox for a child that crashes, hangs, uses up memory, breaks off its
// answer, or is stopped.
#include "src/record/hdf5/sandbox.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
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

// The message of the exception from a sandbox, "" if there is none.
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

TEST_CASE("a child answers requests, each within its own limits") {
  const auto echo = [](const SandboxRead& requests, const SandboxWrite& write) {
    std::array<char, 4> word{};
    while (requests(word.data(), word.size()) == word.size()) {
      if (std::string_view(word.data(), word.size()) == "stop") raise(SIGSEGV);
      write({word.data(), word.size()});
    }
  };
  Sandbox child({.clock_seconds = 60, .output_bytes = 4}, echo);
  std::array<char, 4> word{};
  for (const std::string_view said : {"well", "then", "more"}) {
    child.ask(said);
    CHECK(child.read(word.data(), word.size()) == 4);
    CHECK(std::string_view(word.data(), word.size()) == said);
  }
  child.ask("stop");
  CHECK_THROWS_WITH(child.read(word.data(), word.size()), "it crashed (Segmentation fault)");
}

TEST_CASE("a child has none of its program's files open") {
  const int file = open("/dev/null", O_RDONLY);
  REQUIRE(file > STDERR_FILENO);
  const std::string said = sandbox_text(kSmall, [&](const SandboxWrite& write) {
    write(fcntl(file, F_GETFD) < 0 ? "closed" : "open");
  });
  close(file);
  CHECK(said == "closed");
}

TEST_CASE("a child that is stopped from outside") {
  CHECK(fault_of([](const SandboxWrite&) { raise(SIGKILL); }) ==
        "it was stopped from outside (Killed), or the machine ran out of memory");
  CHECK(fault_of([](const SandboxWrite&) { raise(SIGTERM); }).empty());  // for its program alone
}

namespace {

bool is_running(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string id, name, state;
  file >> id >> name >> state;
  return file && state != "Z";
}

// A program whose child sleeps, in a process group of its own as a shell starts one. It ends by
// `stop`; returns its status after the child has ended too.
int status_when_stopped(const std::function<void(pid_t program)>& stop, void (*on_interrupt)(int)) {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  const pid_t program = fork();
  REQUIRE(program >= 0);
  if (program == 0) {
    setpgid(0, 0);
    signal(SIGINT, on_interrupt);
    close(ends[0]);
    std::string fault;
    try {
      constexpr SandboxLimits kPatient{.clock_seconds = 60};
      Sandbox child(kPatient, [](const SandboxRead&, const SandboxWrite& write) {
        const pid_t self = getpid();
        write({reinterpret_cast<const char*>(&self), sizeof self});
        sleep_forever();
      });
      std::array<char, sizeof(pid_t)> id{};
      child.read(id.data(), id.size());
      if (write(ends[1], id.data(), id.size()) == static_cast<ssize_t>(id.size())) child.finish();
    } catch (const std::runtime_error& error) {
      fault = error.what();
    }
    _exit(fault.empty() ? 7 : 8);
  }
  close(ends[1]);
  pid_t child = 0;
  CHECK(read(ends[0], &child, sizeof child) == sizeof child);
  close(ends[0]);
  REQUIRE(is_running(child));
  stop(program);
  int status = 0;
  CHECK(waitpid(program, &status, 0) == program);
  constexpr int kPatience = 6000, kTurnMs = 10;  // a minute, on a busy machine
  for (int turn = 0; turn < kPatience && is_running(child); ++turn) poll(nullptr, 0, kTurnMs);
  CHECK_FALSE(is_running(child));
  return status;
}

}  // namespace

TEST_CASE("Ctrl-C ends the program, and with it the child") {
  const int status = status_when_stopped([](pid_t program) { kill(-program, SIGINT); }, SIG_DFL);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGINT);
}

TEST_CASE("a program that goes on after Ctrl-C keeps its child") {
  // A shell sends the signal to both.
  const auto interrupt_then_kill = [](pid_t program) {
    kill(-program, SIGINT);
    constexpr int kMs = 200;
    poll(nullptr, 0, kMs);
    kill(program, SIGKILL);
  };
  const int status = status_when_stopped(interrupt_then_kill, [](int) {});
  CHECK(WIFSIGNALED(status));  // it had not ended with an error about its child
  CHECK(WTERMSIG(status) == SIGKILL);
}

TEST_CASE("a child does not outlive its program") {
  const int status = status_when_stopped([](pid_t program) { kill(program, SIGKILL); }, SIG_DFL);
  CHECK(WIFSIGNALED(status));
}

}  // namespace lockstep
