// Rounds a whole array and measures the effect, in one pass.
// These functions run the kernel of the active instruction set (scalar, AVX2, AVX-512). All sets
// give equal bits and equal statistics.
#pragma once

#include <span>

#include "emulation/kernels/args/quantize_spec.h"

namespace lockstep {

// after[i] = round(before[i]); every NaN becomes the positive quiet NaN. `after` may be `before`.
// `stats` may be null (round only); otherwise it is overwritten. T is float or double; a float
// container must contain the format.
template <typename T>
void quantize(std::span<const T> before, std::span<T> after, const QuantizeSpec& spec,
              TensorStats* stats);

// Statistics of an array that is not rounded (after == before, in `format`).
template <typename T>
TensorStats observe(std::span<const T> values, const Format& format);

// Error of `lane` against `reference` (see ErrorStats). Shapes: equal sizes. Requires: scale > 0.
template <typename T, typename R>
ErrorStats compare(std::span<const T> lane, std::span<const R> reference, double scale,
                   const Format& lane_format);

}  // namespace lockstep
