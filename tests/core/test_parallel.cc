// The pool: every index once, errors passed on, any thread count.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "src/core/error.h"
#include "src/core/parallel.h"

using namespace lockstep;

namespace {
struct RestoreThreads {
  int count = thread_count();
  ~RestoreThreads() { set_thread_count(count); }
};
}  // namespace

TEST_CASE("every index is visited once, for any number of threads") {
  const RestoreThreads restore;
  for (const int threads : {1, 2, 3, 8}) {
    set_thread_count(threads);
    CHECK(thread_count() == threads);
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
      parallel_for(count, [&](int64_t i) { ++visits[static_cast<size_t>(i)]; });
      int wrong = 0;
      for (const auto& v : visits) wrong += v != 1;
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("many short jobs in a row") {
  const RestoreThreads restore;
  set_thread_count(2);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 20000; ++round) {
    parallel_for(3, [&](int64_t i) { sum += i + 1; });
  }
  CHECK(sum == 20000 * (1 + 2 + 3));
}

TEST_CASE("two threads really work at the same time") {
  const RestoreThreads restore;
  set_thread_count(2);
  // Each body waits for the other: only possible on two threads.
  std::atomic<int> arrived{0};
  std::atomic<bool> timed_out{false};
  parallel_for(2, [&](int64_t) {
    ++arrived;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (arrived < 2 && !timed_out) {
      if (std::chrono::steady_clock::now() > limit) timed_out = true;
      std::this_thread::yield();
    }
  });
  CHECK(!timed_out);
}

TEST_CASE("an exception from a body reaches the caller, and the pool keeps working") {
  const RestoreThreads restore;
  for (const int threads : {1, 2}) {
    set_thread_count(threads);
    CHECK_THROWS_WITH_AS(parallel_for(100,
                                      [](int64_t i) {
                                        if (i == 37) throw std::runtime_error("body 37");
                                      }),
                         "body 37", std::runtime_error);
    std::atomic<int> done{0};
    parallel_for(10, [&](int64_t) { ++done; });
    CHECK(done == 10);
  }
}

TEST_CASE("a nested call runs on its own thread and does not hang") {
  const RestoreThreads restore;
  set_thread_count(2);
  std::atomic<int> done{0};
  parallel_for(4, [&](int64_t) { parallel_for(4, [&](int64_t) { ++done; }); });
  CHECK(done == 16);
}

TEST_CASE("an impossible thread count is refused with its bounds") {
  CHECK_THROWS_WITH_AS(set_thread_count(0), "threads: 0 is not in 1 <= threads <= 256", InputError);
  CHECK_THROWS_AS(set_thread_count(257), InputError);
}
