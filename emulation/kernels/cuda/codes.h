// Values of a format in FP32 containers to their storage bits, and back: arrays, as a device takes
// them. Nothing is rounded.
#pragma once

#include <cstdint>
#include <optional>

#include "emulation/kernels/cuda/device.h"

namespace lockstep::cuda {

// The layout of a format's factors in memory; none if the accumulator does not take them or no type
// holds them. A null format means the accumulator's only one.
std::optional<Type> type_of(const Accumulator& accumulator, const Format* given);

// Requires: every x is a value of the type's format; NaN becomes the chips' own (7fff, 7f).
void pack_codes(const float* x, Type type, void* codes, int64_t count);
void unpack_values(const void* codes, Type type, float* x, int64_t count);

}  // namespace lockstep::cuda
