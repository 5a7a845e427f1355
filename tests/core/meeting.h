// Shows that pieces of work run at the same time: each waits for the others.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace lockstep {

struct Meeting {
  std::atomic<int> arrived{0};
  std::atomic<bool> timed_out{false};

  // Until `count` have come, or 20 s have passed.
  void wait_for(int count) {
    ++arrived;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (arrived < count && !timed_out) {
      if (std::chrono::steady_clock::now() > limit) timed_out = true;
      std::this_thread::yield();
    }
  }
};

}  // namespace lockstep
