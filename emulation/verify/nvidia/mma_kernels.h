// The kernels of the instruction table, for cuda_device.cu.
#pragma once

#include <cstdint>

#include "emulation/verify/nvidia/mma_instruction.h"

namespace lockstep::mma {

// Tiles in device memory, one after the other in each array.
struct DeviceTiles {
  const uint32_t* a;
  const uint32_t* b;
  const uint32_t* c;
  uint32_t* d;
  int64_t count;
};

// Queues D = A * B + C (without C when `from_zero`) of every tile.
using LaunchFunction = void (*)(const DeviceTiles& tiles, bool from_zero);

// nullptr for an instruction without a kernel.
LaunchFunction find_kernel(const Instruction& instruction);

}  // namespace lockstep::mma
