#include "src/core/free_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace lockstep {
namespace {

// The number after `key` in lines of "KEY NUMBER ...".
std::optional<int64_t> number_after(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t number = 0;
    if (words >> word && word == key && words >> number) return number;
  }
  return std::nullopt;
}

std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;  // "max" is no number
}

std::optional<int64_t> of_machine() {
  constexpr int64_t kKibi = 1024;
  const auto available = number_after("/proc/meminfo", "MemAvailable:");
  if (!available) return std::nullopt;
  return kKibi * (*available + number_after("/proc/meminfo", "SwapFree:").value_or(0));
}

std::optional<int64_t> of_control_group() {
  const std::string group = "/sys/fs/cgroup/";
  const auto limit = number_in(group + "memory.max"), used = number_in(group + "memory.current");
  if (!limit || !used) return std::nullopt;
  return *limit - *used + number_after(group + "memory.stat", "inactive_file").value_or(0);
}

std::optional<int64_t> of_address_space() {
  rlimit limit{};
  const auto pages = number_in("/proc/self/statm");
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || !pages) {
    return std::nullopt;
  }
  return static_cast<int64_t>(limit.rlim_cur) - *pages * sysconf(_SC_PAGESIZE);
}

}  // namespace

std::optional<int64_t> free_memory() {
  std::optional<int64_t> least;
  for (const auto& found : {of_machine(), of_control_group(), of_address_space()}) {
    if (found) least = std::min(least.value_or(*found), *found);
  }
  return least;
}

}  // namespace lockstep
