// The kernel sets of the software engine, and the sets of the other engines that build on each.
#include "emulation/kernels/active_kernels.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "emulation/kernels/cpu/kernels.h"
#include "emulation/kernels/cuda/kernels.h"
#include "emulation/kernels/cuda_devices.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/simd/kernels.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

// Every set, including those this CPU cannot run: an error message must separate "unknown" from
// "this CPU cannot run it".
struct SetRow {
  const KernelSet& (*software)();
  // The other engines' sets on top of this one.
  const KernelSet& (*cpu)();
  const KernelSet& (*cuda)();
  const KernelSet& (*cuda_host)();
  // The software set, with products on a device.
  const KernelSet& (*modelled)();
  const KernelSet& (*modelled_host)();
  bool (*runs_here)();
};
constexpr SetRow kSets[] = {
    {scalar_kernels, cpu_kernels<scalar_kernels>, cuda_kernels<scalar_kernels>,
     cuda_host_kernels<scalar_kernels>, modelled_kernels<scalar_kernels>,
     modelled_host_kernels<scalar_kernels>, [] { return true; }},
    {avx2_kernels, cpu_kernels<avx2_kernels>, cuda_kernels<avx2_kernels>,
     cuda_host_kernels<avx2_kernels>, modelled_kernels<avx2_kernels>,
     modelled_host_kernels<avx2_kernels>, cpu_has_avx2},
    {avx512_kernels, cpu_kernels<avx512_kernels>, cuda_kernels<avx512_kernels>,
     cuda_host_kernels<avx512_kernels>, modelled_kernels<avx512_kernels>,
     modelled_host_kernels<avx512_kernels>, cpu_has_avx512},
};

std::atomic<const KernelSet*> chosen{nullptr};

constexpr SoftwareDevice kDevices[] = {
    {"cuda", "the machine's first NVIDIA GPU"},
    {"cuda-host", "its kernels on this CPU: a test"},
};
std::atomic<const SoftwareDevice*> chosen_device{nullptr};

}  // namespace

std::span<const KernelSet* const> available_kernel_sets() {
  static const std::vector<const KernelSet*> sets = [] {
    std::vector<const KernelSet*> found;
    for (const SetRow& row : kSets) {
      if (row.runs_here()) found.push_back(&row.software());
    }
    return found;
  }();
  return sets;
}

const KernelSet& active_kernels() {
  const KernelSet* set = chosen.load(std::memory_order_relaxed);
  return set != nullptr ? *set : *available_kernel_sets().back();
}

namespace {

const SetRow& active_row() {
  const KernelSet* active = &active_kernels();
  return *std::ranges::find_if(kSets, [&](const SetRow& row) { return &row.software() == active; });
}

}  // namespace

const KernelSet& software_engine_kernels() {
  const SoftwareDevice* device = chosen_device.load(std::memory_order_relaxed);
  if (device == nullptr) return active_kernels();
  return device == &kDevices[0] ? active_row().modelled() : active_row().modelled_host();
}
const KernelSet& cpu_engine_kernels() {
  return active_row().cpu();
}
const KernelSet& cuda_engine_kernels() {
  return active_row().cuda();
}
const KernelSet& cuda_host_engine_kernels() {
  return active_row().cuda_host();
}

std::span<const SoftwareDevice> software_devices() {
  return kDevices;
}

void select_software_device(std::string_view name) {
  if (name.empty()) return chosen_device.store(nullptr);
  std::vector<std::string> names;
  for (const SoftwareDevice& device : kDevices) {
    names.emplace_back(device.name);
    if (device.name != name) continue;
    const std::string why_not = &device == &kDevices[0] ? why_no_model_kernels() : "";
    if (!why_not.empty()) {
      throw InputError("software device '" + std::string(name) + "': " + why_not,
                       "leave --software-device out: the CPU computes the same bits");
    }
    return chosen_device.store(&device);
  }
  throw InputError("software device '" + std::string(name) + "': unknown",
                   did_you_mean(name, names));
}

std::string_view software_device() {
  const SoftwareDevice* device = chosen_device.load(std::memory_order_relaxed);
  return device == nullptr ? "" : device->name;
}

void select_kernels(std::string_view name) {
  std::vector<std::string> names;
  for (const SetRow& row : kSets) {
    const KernelSet& set = row.software();
    names.emplace_back(set.name);
    if (set.name != name) continue;
    if (!row.runs_here()) {
      throw InputError("kernel set '" + std::string(name) + "': this CPU lacks its instructions",
                       "use '" + std::string(available_kernel_sets().back()->name) + "'");
    }
    chosen.store(&set, std::memory_order_relaxed);
    return;
  }
  throw InputError("kernel set '" + std::string(name) + "': unknown", did_you_mean(name, names));
}

}  // namespace lockstep
