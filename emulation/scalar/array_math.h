// What row kernels take from an instruction set: block sums, and exp and log of whole arrays.
// All of one meaning and one result: the scalar functions of emulation/math.h element by element.
#pragma once

#include <cstdint>

#include "emulation/math.h"
#include "emulation/scalar/reduce.h"

namespace lockstep {

template <typename T>
struct ArrayMath {
  BlockSum<T> block_sum;
  void (*exp)(const T* x, T* y, int64_t count);  // y may be x
  void (*log)(const T* x, T* y, int64_t count);
};

template <typename T>
void scalar_exp_array(const T* x, T* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = lockstep_exp<T>(x[i]);
}
template <typename T>
void scalar_log_array(const T* x, T* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = lockstep_log<T>(x[i]);
}
template <typename T>
constexpr ArrayMath<T> scalar_array_math() {
  return {scalar_block_sum<T>, scalar_exp_array<T>, scalar_log_array<T>};
}

}  // namespace lockstep
