// One number from a whole array, without a sum that a policy's accumulator forms.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "src/core/chunks.h"

namespace lockstep {

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == sizeof(uint32_t), uint32_t, uint64_t>;
template <typename T>
inline constexpr auto kInfinityBitsOf =
    std::bit_cast<BitsOf<T>>(std::numeric_limits<T>::infinity());

// The bits of the largest |x| of [x, x + count) that are at most `limit`; 0 if there are none. The
// bits of magnitudes have the order of the numbers; those of NaN come after infinity's.
template <typename T>
BitsOf<T> scalar_largest_bits(const T* x, int64_t count, BitsOf<T> limit) {
  BitsOf<T> largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const BitsOf<T> bits = std::bit_cast<BitsOf<T>>(x[i]) << 1 >> 1;
    largest = std::max(largest, bits > limit ? BitsOf<T>{0} : bits);
  }
  return largest;
}

// `LargestBits`: as above, of one range.
template <typename T, BitsOf<T> (*LargestBits)(const T*, int64_t, BitsOf<T>)>
T largest_magnitude(const T* x, int64_t count, BitsOf<T> limit) {
  std::vector<BitsOf<T>> parts(static_cast<size_t>((count + kElementGrain - 1) / kElementGrain));
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    parts[static_cast<size_t>(begin / kElementGrain)] = LargestBits(x + begin, end - begin, limit);
  });
  BitsOf<T> largest = 0;
  for (const BitsOf<T> part : parts) largest = std::max(largest, part);
  return std::bit_cast<T>(largest);
}

// The largest |x|, an infinity included, NaN left out; 0 if there is none.
template <typename T, BitsOf<T> (*LargestBits)(const T*, int64_t, BitsOf<T>)>
T abs_max(const T* x, int64_t count) {
  return largest_magnitude<T, LargestBits>(x, count, kInfinityBitsOf<T>);
}
// The largest finite |x|; 0 if there is none.
template <typename T, BitsOf<T> (*LargestBits)(const T*, int64_t, BitsOf<T>)>
T finite_abs_max(const T* x, int64_t count) {
  return largest_magnitude<T, LargestBits>(x, count, kInfinityBitsOf<T> - 1);
}
// Neither infinities nor NaN.
template <typename T, BitsOf<T> (*LargestBits)(const T*, int64_t, BitsOf<T>)>
bool all_finite(const T* x, int64_t count) {
  std::atomic<bool> finite{true};
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    if (!finite.load(std::memory_order_relaxed)) return;
    constexpr BitsOf<T> kAny = ~BitsOf<T>{0};
    if (LargestBits(x + begin, end - begin, kAny) >= kInfinityBitsOf<T>) finite = false;
  });
  return finite;
}

// In double, one element after the other.
template <typename T>
double sum_of_squares(const T* x, int64_t count);

}  // namespace lockstep
