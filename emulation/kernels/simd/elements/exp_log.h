// exp, log and tanh of whole arrays in vectors: the bits of emulation/math/exp_log.h.
// Requires: cpu_has_avx2() or cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include <cstdint>

namespace lockstep {

// y[i] = f(x[i]); y may be x.
void avx2_exp(const float* x, float* y, int64_t count);
void avx2_exp(const double* x, double* y, int64_t count);
void avx2_log(const float* x, float* y, int64_t count);
void avx2_log(const double* x, double* y, int64_t count);
void avx2_tanh(const float* x, float* y, int64_t count);
void avx2_tanh(const double* x, double* y, int64_t count);

void avx512_exp(const float* x, float* y, int64_t count);
void avx512_exp(const double* x, double* y, int64_t count);
void avx512_log(const float* x, float* y, int64_t count);
void avx512_log(const double* x, double* y, int64_t count);
void avx512_tanh(const float* x, float* y, int64_t count);
void avx512_tanh(const double* x, double* y, int64_t count);

}  // namespace lockstep
