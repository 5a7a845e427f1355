// The kernel sets available on this machine, and the one in use.
// THE list of sets. Kernels do not read it: their callers pass them what they need.
#pragma once

#include <span>
#include <string_view>

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// The sets of the software engine that this machine can run, slowest first: scalar, then avx2 and
// avx512 where the CPU has them.
std::span<const KernelSet* const> available_kernel_sets();
// The set in use: the fastest available, or the one chosen by name.
const KernelSet& active_kernels();
// Throws: InputError when the name is unknown or this CPU lacks it.
void select_kernels(std::string_view name);

// Where software lanes compute their products from now on: "" (the set in use), or one of
// software_devices(). No bit changes.
// Throws: InputError for another name, and without the device.
struct SoftwareDevice {
  std::string_view name, help;
};
std::span<const SoftwareDevice> software_devices();
void select_software_device(std::string_view name);
std::string_view software_device();

// The engines' sets on top of the one in use (cpu/kernels.h, cuda/kernels.h).
const KernelSet& software_engine_kernels();
const KernelSet& cpu_engine_kernels();
const KernelSet& cuda_engine_kernels();
const KernelSet& cuda_host_engine_kernels();

}  // namespace lockstep
