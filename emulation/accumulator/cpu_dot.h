// The BF16 and FP16 dot instructions of CPUs.
// Scalar models, step by step, of VDPBF16PS, TDPBF16PS, TDPFP16PS, BFDOT and BFMMLA.
//
//   VDPBF16PS     t = fma(a[1], b[1], c);  c = fma(a[0], b[0], t)        the odd element first
//   TDPBF16PS     even = odd = +0; per pair: even = fma(a[0], b[0], even), odd = fma(a[1], b[1],
//                 odd); after the tile's pairs: c = c + (even + odd)
//   BFDOT         c = c + (a[0] * b[0] + a[1] * b[1]), every operation rounded to odd
//   BFDOT, EBF    s = a[0] * b[0] + a[1] * b[1] rounded once; c = c + s
// A missing second element in the last pair counts as +0.
// Sources: Intel SDM vol. 2, VDPBF16PS, TDPBF16PS, TDPFP16PS; Arm A64 ISA, BFDOT, BFMMLA.
// NaN results are the canonical NaN; vdpbf16ps_nan gives the NaN of VDPBF16PS itself.
// `lockstep verify --hardware` compared VDPBF16PS with an AMD Zen 5 and an Intel Xeon, TDPBF16PS
// and TDPFP16PS with the Xeon: no mismatch. Arm's instructions have not run on a chip.
#pragma once

#include <cstdint>

#include "emulation/accumulator/accumulator.h"
#include "emulation/accumulator/dot_trace.h"

namespace lockstep {

// FP32 fused multiply-add with DAZ and FTZ, whatever MXCSR holds: subnormal inputs count as zeros
// of their sign; a result below 2^-126 after rounding to 24 bits, exponent unbounded, is flushed.
float flushing_fma(float a, float b, float c);

inline constexpr int64_t kAmxTilePairs = 16;  // of one instruction: 32 factors of 16 bits

// start + sum of a[k] * b[k], NaN canonical. `steps` collects the steps; may be null.
float bf16_pairs_dot(const float* a, const float* b, int64_t count, float start,
                     DotSteps* steps = nullptr);
// For BF16 and FP16 factors. DAZ applies to FP32 subnormals; an FP16 subnormal is not one.
float amx_tile_dot(const float* a, const float* b, int64_t count, float start,
                   DotSteps* steps = nullptr);
float arm_pairs_dot(const float* a, const float* b, int64_t count, float start,
                    DotSteps* steps = nullptr);
float arm_pairs_fused_dot(const float* a, const float* b, int64_t count, float start,
                          DotSteps* steps = nullptr);

// The bits of VDPBF16PS's NaN: the first NaN among a[0], b[0], a[1], b[1], c, made quiet; without
// one, the default NaN of an invalid operation. Elements are FP32 bits. Requires: the result is
// NaN. Source: Intel SDM vol. 2, VDPBF16PS; vol. 1, table 4-7; measured on Zen 5, compared with an
// Intel Xeon.
uint32_t vdpbf16ps_nan(uint32_t a0, uint32_t b0, uint32_t a1, uint32_t b1, uint32_t c);

}  // namespace lockstep
