// Reads /proc/ID/stat.
#include "src/core/process.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

namespace lockstep {
namespace {

// Source: proc(5), field 22 of /proc/ID/stat, "starttime". The second field, the program's name,
// may hold spaces and parentheses; the last ')' ends it.
int64_t start_of(int64_t id) {
  std::ifstream file("/proc/" + std::to_string(id) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return 0;
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  constexpr int kStartTime = 22, kFirst = 3;  // the field after the name
  std::istringstream fields(line.substr(name_end + 1));
  std::string field, state;
  for (int i = kFirst; i <= kStartTime; ++i) {
    fields >> field;
    if (i == kFirst) state = field;
  }
  if (state == "Z" || state == "X") return 0;  // ended, and not waited for
  std::istringstream number(field);
  int64_t started = 0;
  number >> started;
  return started;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

ProcessMark this_process() {
  const int64_t id = getpid();
  return {.id = id, .started = start_of(id), .host = host_name()};
}

Running is_running(const ProcessMark& process) {
  if (process.started == 0 || process.host != host_name()) return Running::kNotKnown;
  return start_of(process.id) == process.started ? Running::kYes : Running::kNo;
}

}  // namespace lockstep
