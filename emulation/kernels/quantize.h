// Rounding a whole array and measuring what that did, in one pass.
// The functions here choose nothing: they run the kernel of the active instruction set (scalar,
// AVX2, AVX-512), all of which give equal bits, statistics included.
#pragma once

#include <cstdint>
#include <span>

#include "emulation/format/rounding.h"
#include "emulation/stats/tensor_stats.h"

namespace lockstep {

struct QuantizeSpec {
  const Format* format = nullptr;
  Rounding rounding = Rounding::kNearestEven;
  StochasticKey key = {};  // used by Rounding::kStochastic
  // Nothing is rounded or stored (`after` is not touched): the statistics are those of after ==
  // before, `format` tells subnormals apart. This is what observe() asks for.
  bool measure_only = false;
};

// after[i] = round(before[i]); every NaN becomes the one positive quiet NaN. `after` may be
// `before`. `stats` may be null (round only); it is overwritten. T is float or double; a float
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

// The hash is the sum modulo 2^64 of hash_element over the elements, so that any partition of the
// array gives the same number; one changed element always changes it.
uint64_t hash_element(float value, uint64_t index);
uint64_t hash_element(double value, uint64_t index);

}  // namespace lockstep
