// The arguments of kernels that work element by element.
#pragma once

#include <cstdint>

namespace lockstep {

// Comparisons with NaN are false, except kNotEqual, which is true.
enum class Relation : uint8_t {
  kGreater,
  kGreaterEqual,
  kLess,
  kLessEqual,
  kEqual,
  kNotEqual,
};

// The factor of kept elements in dropout with probability p, formed as in torch: 1 - p in double,
// the quotient in T; 0 where nothing is kept.
template <typename T>
T dropout_scale(double p) {
  return p < 1 ? T(1) / static_cast<T>(1 - p) : T(0);
}

// For the leaky relu whose slope is an operand: x of `count` elements; element i has slope w[i /
// inner % channels]. channels 1: one slope for all.
struct PreluShape {
  int64_t count, channels, inner;
};

}  // namespace lockstep
