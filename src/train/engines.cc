// The tables of engines and hardware targets, and the one place that refuses a target.
#include "src/train/engines.h"

#include <string>
#include <vector>

#include "src/core/error.h"

namespace lockstep {
namespace {

constexpr Engine kEngines[] = {
    {"software", "emulation in FP32 containers (FP64 for the truth lane), on any CPU", true},
    {"cpu",
     "the CPU's own F16C, AVX512-BF16, AVX512-FP16 and AMX instructions; not in this build yet",
     false},
    {"cuda", "cuBLAS and tensor cores of an NVIDIA GPU; not in this build yet", false},
};

constexpr HardwareTarget kHardwareTargets[] = {
    {"volta", "tensor cores of NVIDIA V100"},
    {"turing", "tensor cores of NVIDIA T4, RTX 20"},
    {"ampere", "tensor cores of NVIDIA A100"},
    {"ada", "tensor cores of NVIDIA L40, RTX 40"},
    {"hopper", "tensor cores of NVIDIA H100, H200"},
    {"blackwell", "tensor cores of NVIDIA B200, RTX 50"},
};

}  // namespace

std::span<const Engine> engines() {
  return kEngines;
}
std::span<const HardwareTarget> hardware_targets() {
  return kHardwareTargets;
}

const Engine& find_engine(std::string_view target) {
  if (target.empty()) return kEngines[0];
  std::vector<std::string> names;
  for (const Engine& engine : kEngines) {
    if (engine.name == target) {
      if (engine.in_this_build) return engine;
      throw InputError("target '" + std::string(target) + "': this engine is not in this build yet",
                       "leave '@" + std::string(target) + "' out to run the software engine");
    }
    names.emplace_back(engine.name);
  }
  for (const HardwareTarget& hardware : kHardwareTargets) {
    if (hardware.name == target) {
      throw InputError("target '" + std::string(target) +
                           "': the accumulators of this hardware are not in this version",
                       "leave '@" + std::string(target) +
                           "' out to run with the accumulators the policy declares");
    }
    names.emplace_back(hardware.name);
  }
  throw InputError("target '" + std::string(target) + "': neither an engine nor a known hardware",
                   did_you_mean(target, names));
}

}  // namespace lockstep
