// What are kernels that work element by element given?
#pragma once

#include <cstdint>

namespace lockstep {

// Comparisons with NaN are false, but for kNotEqual, which is true.
enum class Comparison : uint8_t {
  kGreater,
  kGreaterEqual,
  kLess,
  kLessEqual,
  kEqual,
  kNotEqual,
};

// What dropout with probability p multiplies a kept element by, as torch forms it: 1 - p in double,
// the quotient in T; 0 where nothing is kept.
template <typename T>
T dropout_scale(double p) {
  return p < 1 ? T(1) / static_cast<T>(1 - p) : T(0);
}

// Of the leaky relu whose slope is an operand: x of `count` elements; element i has slope w[i /
// inner % channels], channels 1: one for all.
struct PreluShape {
  int64_t count, channels, inner;
};

}  // namespace lockstep
