// Rounds a whole array and measures the effect, in one pass.
// These functions check sizes and run the kernel of the given set: a lane passes its engine's,
// other callers active_kernels(). All sets give equal bits and equal statistics.
#pragma once

#include <span>

#include "emulation/kernels/args/quantize_spec.h"
#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// after[i] = round(before[i]); every NaN becomes the positive quiet NaN. `after` may be `before`.
// `stats` may be null (round only); otherwise it is overwritten. T is float or double; a float
// container must contain the format.
template <typename T>
void quantize(const KernelSet& kernels, std::span<const T> before, std::span<T> after,
              const QuantizeSpec& spec, TensorStats* stats);

// Rounds in place what `fill` writes. Requires: not spec.measure_only.
template <typename T>
void fill_and_quantize(const KernelSet& kernels, const FillRange& fill, std::span<T> values,
                       const QuantizeSpec& spec, TensorStats* stats);

// Statistics of an array that is not rounded (after == before, in `format`). `comparison`: see
// QuantizeSpec.
template <typename T>
TensorStats observe(const KernelSet& kernels, std::span<const T> values, const Format& format,
                    ReferenceComparison* comparison = nullptr);

// Error of `lane` against `reference` (see ErrorStats). Shapes: equal sizes. Requires: scale > 0.
template <typename T>
ErrorStats compare(const KernelSet& kernels, std::span<const T> lane,
                   std::span<const float> reference, double scale, const Format& lane_format);

}  // namespace lockstep
