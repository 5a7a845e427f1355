// Elementwise kernels as plain loops.
#include "emulation/kernels/scalar/elements/elementwise.h"

#include <bit>
#include <cmath>
#include <type_traits>

#include "emulation/accumulator/fast_round.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

// y[i] = f(i); ranges are spread over the threads.
template <typename T, typename Function>
void for_each_element(int64_t count, T* y, Function f) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = canonical_nan<T>(f(i));
  });
}

}  // namespace

template <typename T>
void scalar_add(const T* a, const T* b, T* y, int64_t count) {
  for_each_element(count, y, [=](int64_t i) { return a[i] + b[i]; });
}

template <typename T>
void scalar_mul(const T* a, const T* b, T* y, int64_t count) {
  for_each_element(count, y, [=](int64_t i) { return a[i] * b[i]; });
}

template <typename T>
void scalar_scale(const T* x, T factor, T* y, int64_t count) {
  for_each_element(count, y, [=](int64_t i) { return x[i] * factor; });
}

template <typename T>
void scale_in_double(const T* x, double factor, T* y, int64_t count) {
  for_each_element(count, y,
                   [=](int64_t i) { return static_cast<T>(static_cast<double>(x[i]) * factor); });
}

template <typename T>
void scalar_divide(const T* x, T divisor, T* y, int64_t count) {
  for_each_element(count, y, [=](int64_t i) { return x[i] / divisor; });
}

// Adding 1 to the bits moves away from zero by one ulp, subtracting towards it.
template <typename T>
void move_by_one_ulp(T* x, const RandomStream& signs, uint64_t first, int64_t count) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (x[i] == 0 || !std::isfinite(x[i])) continue;
      const bool grows = (signs.bits(first + static_cast<uint64_t>(i)) & 1) != 0;
      const Bits bits = std::bit_cast<Bits>(x[i]);
      x[i] = std::bit_cast<T>(grows ? bits + 1 : bits - 1);
    }
  });
}

template <typename T>
void scalar_add_channels(T* y, const T* b, int64_t batch, int64_t channels, int64_t plane) {
  parallel_chunks(batch * channels, row_grain(plane), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T bias = b[row % channels];
      for (T* at = y + row * plane; at < y + (row + 1) * plane; ++at) {
        *at = canonical_nan(*at + bias);
      }
    }
  });
}

template <typename T>
void scalar_relu(const T* x, T* y, int64_t count) {
  for_each_element(count, y, [=](int64_t i) { return x[i] <= 0 ? T(0) : x[i]; });
}

template <typename T>
void scalar_relu_backward(const T* y, const T* dy, T* dx, int64_t count) {
  for_each_element(count, dx, [=](int64_t i) { return y[i] <= 0 ? T(0) : dy[i]; });
}

#define LOCKSTEP_INSTANTIATE(T)                                               \
  template void scalar_add(const T*, const T*, T*, int64_t);                  \
  template void scalar_mul(const T*, const T*, T*, int64_t);                  \
  template void scalar_scale(const T*, T, T*, int64_t);                       \
  template void scale_in_double(const T*, double, T*, int64_t);               \
  template void scalar_divide(const T*, T, T*, int64_t);                      \
  template void move_by_one_ulp(T*, const RandomStream&, uint64_t, int64_t);  \
  template void scalar_add_channels(T*, const T*, int64_t, int64_t, int64_t); \
  template void scalar_relu(const T*, T*, int64_t);                           \
  template void scalar_relu_backward(const T*, const T*, T*, int64_t);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
