// Spreads independent elements or rows over threads, in fixed ranges that do not depend on the
// number of threads. Only for work whose pieces write separate results: sums have their own order
// (emulation/kernels/reduction.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/core/parallel.h"

namespace lockstep {

// With fewer elements than this, at a few operations each, waking another thread does not pay.
inline constexpr int64_t kElementGrain = 16384;

// Calls body(begin, end) on consecutive ranges of `grain` that cover [0, count).
template <typename Body>
void parallel_chunks(int64_t count, int64_t grain, Body body) {
  if (count <= grain) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  parallel_for((count + grain - 1) / grain,
               [&](int64_t chunk) { body(chunk * grain, std::min(count, (chunk + 1) * grain)); });
}

// Rows per range, so that a range holds about kElementGrain elements.
inline int64_t row_grain(int64_t row_elements) {
  return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, row_elements));
}

}  // namespace lockstep
