#include "src/record/run/environment.h"

#include <fmt/core.h>
#include <hdf5.h>
#include <hwy/highway.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/cpu_unit.h"
#include "emulation/kernels/cuda_devices.h"
#include "emulation/kernels/kernel_set.h"
#include "src/core/parallel.h"

namespace lockstep {
namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) {
      return line.substr(line.find(": ") + 2);
    }
  }
  return "unknown";
}

std::string cpu_features() {
  std::string features;
#if defined(__x86_64__)
  const auto add = [&features](bool present, std::string_view name) {
    if (present) features += (features.empty() ? "" : " ") + std::string(name);
  };
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512dq"), "avx512dq");
  add(__builtin_cpu_supports("avx512vl"), "avx512vl");
  for (const CpuUnitInfo& info : cpu_units()) add(cpu_has(info.unit), info.name);
#endif
  return features.empty() ? "none" : features;
}

}  // namespace

std::map<std::string, std::string> describe_environment() {
  return {
      {"cpu", cpu_model()},
      {"cpu_features", cpu_features()},
      {"gpu", used_gpu()},
      {"compiler", LOCKSTEP_COMPILER},
      {"compile_flags", LOCKSTEP_COMPILE_FLAGS},
      {"kernels", std::string(active_kernels().name)},
      {"software_device", std::string(software_device().empty() ? "none" : software_device())},
      {"threads", std::to_string(thread_count())},
      {"hdf5", fmt::format("{}.{}.{}", H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE)},
      {"highway", fmt::format("{}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH)},
      {"fmt", std::to_string(FMT_VERSION)},
      {"nlohmann_json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                    NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
  };
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  ::gmtime_r(&now, &utc);
  char text[sizeof "2025-01-31T12:00:00Z"];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace lockstep
