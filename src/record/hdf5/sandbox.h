// Runs code that may crash, hang or use up all memory: in a child process with limits, which
// answers requests through a socket. The answers must be trusted no more than the input.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct SandboxLimits {
  // For the child's first answer, and for each later one.
  double seconds = 60;              // of processor time, in all until the first request
  double clock_seconds = 180;       // longer: others may have the processor, and a child may sleep
  uint64_t memory_bytes = 1 << 30;  // beyond what this process already uses
  uint64_t output_bytes = 1 << 30;
};

// How a child failed. kMachine: no process could be made, or it was stopped from outside; nothing
// is known of its input.
class SandboxError : public std::runtime_error {
 public:
  enum class Cause : uint8_t { kInput, kMachine };
  SandboxError(const std::string& what, Cause cause) : std::runtime_error(what), cause_(cause) {}
  bool is_of_machine() const { return cause_ == Cause::kMachine; }

 private:
  Cause cause_;
};

using SandboxWrite = std::function<void(std::string_view)>;
// Fills `into` and returns fewer than `count` bytes only at the end.
using SandboxRead = std::function<size_t(char* into, size_t count)>;

// The child starts at once and ends with `work`, with this object or with this process. It has no
// stderr and no open file but the socket, leaves no core, and ends without running destructors or
// exit handlers. With AddressSanitizer, which uses an unbounded address space, the child's resident
// memory is watched instead, and it keeps its stderr.
// All functions throw SandboxError with the limit that was met, or with the signal or exit code
// that ended the child; after that the object is of no further use. Ctrl-C and SIGTERM, which a
// shell sends to the child, too, do not end it.
class Sandbox {
 public:
  using Work = std::function<void(const SandboxRead& requests, const SandboxWrite& write)>;
  Sandbox(const SandboxLimits& limits, const Work& work);
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;
  ~Sandbox();

  // The time and the output of the next answer count from here.
  void ask(std::string_view request);
  // What the child wrote: fewer than `count` bytes only if it has ended without a fault. Data are
  // valid as soon as they are whole by the caller's own rules.
  size_t read(char* into, size_t count);
  // Waits until the child ends by itself.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void begin_answer();
  bool fill();  // false at the end
  void await_end();
  void kill_child();
  [[noreturn]] void fail(const std::string& why, SandboxError::Cause cause);

  SandboxLimits limits_;
  pid_t child_ = -1;  // -1: it has ended
  int socket_ = -1;
  Clock::time_point end_;
  uint64_t had_ = 0;  // resident bytes of this process when the child began
  std::vector<char> chunk_;
  size_t next_ = 0, held_ = 0;  // of chunk_
  uint64_t total_ = 0;          // bytes of this answer
};

}  // namespace lockstep
