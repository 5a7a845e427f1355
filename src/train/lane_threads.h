// Lanes on threads of their own. A lane's bits depend on nothing but itself, so neither does it
// matter which lanes run at the same time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "src/train/lane.h"

namespace lockstep {

// False on one thread, and for all lanes as soon as one of them uses a device.
bool lanes_share_threads(std::span<const std::unique_ptr<Lane>> lanes);

// Calls work(l) for every lane from number `first` on: at the same time if lanes_share_threads(),
// else in their order. `work` changes nothing that belongs to another lane.
void for_lanes(std::span<const std::unique_ptr<Lane>> lanes, size_t first,
               const std::function<void(size_t)>& work);

}  // namespace lockstep
