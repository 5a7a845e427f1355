// Is a process of this machine still running? Its number alone does not say, because numbers are
// used again; together with the time of its start it does. Knows Linux only (/proc).
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
// Of another host's process it is not known.
Running is_running(const ProcessMark& process);

}  // namespace lockstep
