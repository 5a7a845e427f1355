// One range of emulation/kernels/compact.h, in vectors.
#pragma once

#include <cstdint>

#include "emulation/kernels/compact.h"

namespace lockstep {

struct CompactFunctions {
  void (*compact_floats)(CompactForm, const float* from, int64_t count, uint16_t* to);
  void (*expand_floats)(CompactForm, const uint16_t* from, int64_t count, float* to);
  void (*compact_bits)(const int32_t* from, int64_t count, uint8_t* to);
  void (*expand_bits)(const uint8_t* from, int64_t count, int32_t* to);
};

// Requires: cpu_has_avx2(), cpu_has_avx512().
const CompactFunctions& avx2_compact_functions();
const CompactFunctions& avx512_compact_functions();

}  // namespace lockstep
