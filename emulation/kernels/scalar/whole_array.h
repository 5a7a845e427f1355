// One number from a whole array. None is a sum that a policy's accumulator forms.
#pragma once

#include <cstdint>

namespace lockstep {

// The largest |x|, an infinity included, NaN left out; 0 if there is none.
template <typename T>
T abs_max(const T* x, int64_t count);
// Neither infinities nor NaN.
template <typename T>
bool all_finite(const T* x, int64_t count);
// In double, one element after the other.
template <typename T>
double sum_of_squares(const T* x, int64_t count);

}  // namespace lockstep
