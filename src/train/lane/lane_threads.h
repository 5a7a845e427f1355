// Lanes on threads of their own. No lane's bits depend on which lanes run at the same time.
// Within a node all lanes run at once, the reference kReferenceLead nodes ahead (lane.h), so that
// its values are there when others are compared with them. If they waited for it at every node,
// threads would be idle.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "src/train/lane/lane.h"

namespace lockstep {

// False on one thread, or if any lane uses a device.
bool lanes_share_threads(std::span<const std::unique_ptr<Lane>> lanes);

// Calls work(l) for the lanes [first, count): at the same time, or in their order. `work` changes
// nothing that belongs to another lane.
void for_lanes(size_t first, size_t count, bool at_the_same_time,
               const std::function<void(size_t)>& work);

}  // namespace lockstep
