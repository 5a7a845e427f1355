// Runs code that may crash, hang or use up all memory: in a child process with limits, which
// returns bytes through a pipe as it goes. The bytes are not stored here. The output must be
// trusted no more than the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

struct SandboxLimits {
  double seconds = 60;              // of processor time
  double clock_seconds = 180;       // longer: others may have the processor, and a child may sleep
  uint64_t memory_bytes = 1 << 30;  // beyond what this process already uses
  uint64_t output_bytes = 1 << 30;
};

// Runs `work` in a child and, here, `use`, which reads what the child writes. `write` and `read`
// may be called any number of times; `read` fills `into` and returns fewer than `count` bytes only
// at the end. `use` reads to the end, or throws. Its result is valid only after run_sandboxed
// returns: until then it is unknown how the child ends. The child has no stderr, leaves no core,
// dies with this process (and by the same Ctrl-C), and ends without running destructors or exit
// handlers. With AddressSanitizer, which uses an unbounded address space, the child's resident
// memory is watched instead, and it keeps its stderr. Throws: std::runtime_error with the limit
// that was met, or with the signal or exit code that ended the child; otherwise what `use` threw.
using SandboxWrite = std::function<void(std::string_view)>;
using SandboxRead = std::function<size_t(char* into, size_t count)>;
void run_sandboxed(const SandboxLimits& limits,
                   const std::function<void(const SandboxWrite& write)>& work,
                   const std::function<void(const SandboxRead& read)>& use);

}  // namespace lockstep
