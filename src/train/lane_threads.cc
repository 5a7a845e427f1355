// See lane_threads.h.
#include "src/train/lane_threads.h"

#include <algorithm>

#include "src/core/parallel.h"

namespace lockstep {

bool lanes_share_threads(std::span<const std::unique_ptr<Lane>> lanes) {
  return thread_count() > 1 &&
         std::ranges::all_of(lanes, [](const auto& lane) { return lane->may_run_apart(); });
}

void for_lanes(std::span<const std::unique_ptr<Lane>> lanes, size_t first,
               const std::function<void(size_t)>& work) {
  if (lanes_share_threads(lanes)) {
    const auto count = static_cast<int64_t>(lanes.size() - first);
    parallel_tasks(count, [&](int64_t i) { work(first + static_cast<size_t>(i)); });
  } else {
    for (size_t l = first; l < lanes.size(); ++l) work(l);
  }
}

}  // namespace lockstep
