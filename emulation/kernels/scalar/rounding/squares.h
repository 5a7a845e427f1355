// The terms of a variance, which batch and row normalisation sum.
#pragma once

#include <cstdint>

namespace lockstep {

// out = (x - mean)^2; out may be x
template <typename T>
void scalar_squares(const T* x, T mean, T* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const T centred = x[i] - mean;
    out[i] = centred * centred;
  }
}

}  // namespace lockstep
