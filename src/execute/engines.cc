// The table of engines, and the one place that rejects a target.
#include "src/execute/engines.h"

#include <string>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/cuda_devices.h"
#include "src/core/error.h"
#include "src/execute/cpu_engine.h"
#include "src/execute/cuda_engine.h"
#include "src/execute/software_engine.h"

namespace lockstep {
namespace {

// BF16 factors use VDPBF16PS, other sums FMA or AVX512-FP16. An AMX accumulator must be named in
// the policy.
constexpr Hardware kThisCpu = {.name = "avx512-bf16",
                               .help = "the CPU this program runs on",
                               .truncates_tf32 = false,
                               .flushes_bf16 = true,
                               .runs_other_sums = true};

constexpr Engine kEngines[] = {
    {.name = "software",
     .help = "emulation in FP32 containers (FP64 for the truth lane), on any CPU",
     .kernels = software_engine_kernels,
     .survey = survey_software_engine},
    {.name = "cpu",
     .help = "the CPU's own F16C, AVX512-BF16, AVX512-FP16 and AMX instructions",
     .kernels = cpu_engine_kernels,
     .hardware = [] { return &kThisCpu; },
     .survey = survey_cpu_engine},
    {.name = "cuda",
     .help = "cuBLAS on the tensor cores of an NVIDIA GPU; software for everything but products",
     .kernels = cuda_engine_kernels,
     .hardware = [] { return &gpu_hardware(); },
     .survey = survey_cuda_engine,
     .why_not = why_no_gpu,
     .has_library = true},
    {.name = "cuda-host",
     .help = "the code of the engine cuda on this CPU, which stands in for an H100: a test of "
             "packing and "
             "layouts, "
             "not of a GPU",
     .kernels = cuda_host_engine_kernels,
     .hardware = [] { return &stand_in_hardware(); },
     .survey = survey_cuda_engine,
     .has_library = true},
};

}  // namespace

std::span<const Engine> engines() {
  return kEngines;
}

const Engine& find_engine(std::string_view target) {
  if (target.empty()) return kEngines[0];
  std::vector<std::string> names;
  for (const Engine& engine : kEngines) {
    if (engine.name == target) {
      const std::string why_not = engine.why_not != nullptr ? engine.why_not() : "";
      if (why_not.empty()) return engine;
      throw InputError("target '" + std::string(target) + "': " + why_not,
                       "leave '@" + std::string(target) +
                           "' out to run the software engine, or name a chip: '@hopper'");
    }
    names.emplace_back(engine.name);
  }
  for (const Hardware& row : hardware()) {
    if (row.name == target) return kEngines[0];
    names.emplace_back(row.name);
  }
  throw InputError("target '" + std::string(target) + "': neither an engine nor a known hardware",
                   did_you_mean(target, names));
}

}  // namespace lockstep
