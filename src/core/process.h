// Tells whether a process of this machine is still running. Its number alone does not show that,
// because numbers are reused; together with the time of its start it does. Knows Linux only
// (/proc).
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

struct ProcessMark {
  int64_t id = 0;
  int64_t started = 0;  // clock ticks after boot; 0: not known
  std::string host;
};
ProcessMark this_process();

enum class Running : uint8_t { kYes, kNo, kNotKnown };
// kNotKnown for a process of another host.
Running is_running(const ProcessMark& process);

}  // namespace lockstep
