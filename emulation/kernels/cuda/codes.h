// Values of a format in FP32 containers to their storage bits, and back: arrays, as a device takes
// them. Nothing is rounded.
#pragma once

#include <cstdint>

#include "emulation/kernels/cuda/device.h"

namespace lockstep::cuda {

// Requires: every x is a value of the type's format; NaN becomes the chips' own (7fff, 7f).
void pack_codes(const float* x, Type type, void* codes, int64_t count);
void unpack_values(const void* codes, Type type, float* x, int64_t count);

}  // namespace lockstep::cuda
