// The results of single instructions of the CPU.
// Functions over arrays, bits in and bits out, exactly as the machine computes them: NaNs keep the
// payload from the CPU. `lockstep verify --hardware` compares them with the models, and the
// engine's conversions use them. Requires: cpu_has() the unit named.
#pragma once

#include <cstdint>

#include "emulation/format/rounding_rules.h"

namespace lockstep::cpu {

// F16C. Requires: nearest even, up, down or toward zero.
void vcvtps2ph(const float* x, uint16_t* y, int64_t count, Rounding rounding);
void vcvtph2ps(const uint16_t* x, float* y, int64_t count);

// FMA: y = round(a * b + c).
void vfmadd231ps(const float* a, const float* b, const float* c, float* y, int64_t count);

// AVX512-BF16. The second converts its two sources to the two halves of a vector of 32.
void vcvtneps2bf16(const float* x, uint16_t* y, int64_t count);
void vcvtne2ps2bf16(const float* x, uint16_t* y, int64_t count);
// y = c + a . b over pairs of BF16, element 0 in the low half of a word.
void vdpbf16ps(const uint32_t* a, const uint32_t* b, const float* c, float* y, int64_t count);

// AVX512-FP16.
void vfmadd231ph(const uint16_t* a, const uint16_t* b, const uint16_t* c, uint16_t* y,
                 int64_t count);
void vmulph(const uint16_t* a, const uint16_t* b, uint16_t* y, int64_t count);
void vaddph(const uint16_t* a, const uint16_t* b, uint16_t* y, int64_t count);

// AMX: y = c + a . b over 2 * pairs factors, 1 <= pairs <= 16; the factors of the outputs are
// stored one after the other. Each output is one tile of one row and one column.
void tdpbf16ps(const uint16_t* a, const uint16_t* b, const float* c, float* y, int pairs,
               int64_t count);
void tdpfp16ps(const uint16_t* a, const uint16_t* b, const float* c, float* y, int pairs,
               int64_t count);

}  // namespace lockstep::cpu
