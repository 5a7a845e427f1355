// See lane_threads.h.
#include "src/train/lane/lane_threads.h"

#include <algorithm>

#include "src/core/parallel.h"

namespace lockstep {

bool lanes_share_threads(std::span<const std::unique_ptr<Lane>> lanes) {
  return thread_count() > 1 &&
         std::ranges::all_of(lanes, [](const auto& lane) { return lane->may_run_apart(); });
}

void for_lanes(size_t first, size_t count, bool at_the_same_time,
               const std::function<void(size_t)>& work) {
  if (at_the_same_time) {
    parallel_tasks(static_cast<int64_t>(count - first),
                   [&](int64_t i) { work(first + static_cast<size_t>(i)); });
  } else {
    for (size_t l = first; l < count; ++l) work(l);
  }
}

}  // namespace lockstep
