// How is something run that may crash, hang or eat all memory?
// In a child process with limits, which hands back bytes through a pipe as it goes: nothing of them
// is kept here. What comes back is no more to be trusted than what went in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

struct SandboxLimits {
  double seconds = 60;              // of processor time
  double clock_seconds = 180;       // others may have the processor, and a child may sleep
  uint64_t memory_bytes = 1 << 30;  // beyond what this process has already
  uint64_t output_bytes = 1 << 30;
};

// Runs `work` in a child, and here `use`, which reads what the child writes. `write` and `read` may
// be called any number of times; `read` fills `into`, and gives fewer than `count` bytes only where
// they end. `use` reads to the end, or throws. What it made of the bytes counts when run_sandboxed
// returns, not before: until then nobody knows how the child ends. The child has nothing on stderr,
// leaves no core, dies with this process (and by the same Ctrl-C), and ends without running
// destructors or exit handlers. In builds with AddressSanitizer, whose address space has no bound,
// its resident memory is watched instead, and its stderr is kept. Throws: std::runtime_error saying
// which limit was met, or by which signal or exit code the child ended; else what `use` threw.
using SandboxWrite = std::function<void(std::string_view)>;
using SandboxRead = std::function<size_t(char* into, size_t count)>;
void run_sandboxed(const SandboxLimits& limits,
                   const std::function<void(const SandboxWrite& write)>& work,
                   const std::function<void(const SandboxRead& read)>& use);

}  // namespace lockstep
