// See whole_array.h.
#include "emulation/kernels/scalar/whole_array.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>
#include <vector>

#include "src/core/chunks.h"

namespace lockstep {
namespace {

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <typename T>
constexpr auto kInfinity = std::bit_cast<BitsOf<T>>(std::numeric_limits<T>::infinity());

}  // namespace

// The bits of magnitudes have the order of the numbers; those of NaN come last.
template <typename T>
T abs_max(const T* x, int64_t count) {
  using Bits = BitsOf<T>;
  std::vector<Bits> parts(static_cast<size_t>((count + kElementGrain - 1) / kElementGrain));
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    Bits largest = 0;
    for (int64_t i = begin; i < end; ++i) {
      const Bits bits = std::bit_cast<Bits>(x[i]) << 1 >> 1;
      largest = std::max(largest, bits > kInfinity<T> ? Bits{0} : bits);
    }
    parts[static_cast<size_t>(begin / kElementGrain)] = largest;
  });
  Bits largest = 0;
  for (const Bits part : parts) largest = std::max(largest, part);
  return std::bit_cast<T>(largest);
}

// Exponent field all ones: infinity or NaN. Integer compares vectorize, std::isfinite may not.
template <typename T>
bool all_finite(const T* x, int64_t count) {
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    finite &= (std::bit_cast<BitsOf<T>>(x[i]) & kInfinity<T>) != kInfinity<T>;
  }
  return finite;
}

template <typename T>
double sum_of_squares(const T* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return sum;
}

#define LOCKSTEP_INSTANTIATE(T)                \
  template T abs_max(const T*, int64_t);       \
  template bool all_finite(const T*, int64_t); \
  template double sum_of_squares(const T*, int64_t);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
