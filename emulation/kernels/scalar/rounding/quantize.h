// Rounding and measuring with plain loops: the definition. Every vector version equals it bit for
// bit, statistics included.
#pragma once

#include <cstdint>

#include "emulation/kernels/args/quantize_spec.h"

namespace lockstep {

// Kernels<T>::quantize for T float or double: after[i] = round(before[i]); see quantize.h for
// `spec` and tensor_stats.h for the statistics. `stats` may be null; otherwise it is overwritten.
// `after` may be `before`; with spec.measure_only it is not written and may be null. Throws:
// std::logic_error if the container does not contain the format.
template <typename T>
void scalar_quantize(const T* before, T* after, int64_t count, const QuantizeSpec& spec,
                     TensorStats* stats);

// Kernels<T>::compare. `error` is overwritten.
template <typename T>
void scalar_compare(const T* lane, const float* reference, int64_t count, double scale,
                    const Format& lane_format, ErrorStats* error);

}  // namespace lockstep
