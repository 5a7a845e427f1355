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
#include "tests/core/meeting.h"

using namespace lockstep;

namespace {
struct RestoreThreads {
  int count = thread_count();
  ~RestoreThreads() { set_thread_count(count); }
};
}  // namespace

TEST_CASE("every index is visited once, for any number of threads") {
  const RestoreThreads restore;
  for (const int threads : {1, 2, 3, 8, 40}) {
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

namespace {
// Longer than a thread without work stays awake.
void pause_until_threads_sleep() {
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
}
}  // namespace

TEST_CASE("threads that sleep are woken by loops and tasks, and wake their callers") {
  const RestoreThreads restore;
  set_thread_count(3);
  for (int round = 0; round < 20; ++round) {
    pause_until_threads_sleep();
    // Only together do three bodies end; the caller's ends first, so that the caller sleeps.
    for (const auto run : {parallel_for, parallel_tasks}) {
      const auto caller = std::this_thread::get_id();
      Meeting meeting;
      std::atomic<int> done{0};
      run(3, [&](int64_t) {
        meeting.wait_for(3);
        if (std::this_thread::get_id() != caller) pause_until_threads_sleep();
        ++done;
      });
      CHECK(!meeting.timed_out);
      CHECK(done.load() == 3);
    }
  }
}

TEST_CASE("two threads really work at the same time") {
  const RestoreThreads restore;
  set_thread_count(2);
  // Each body waits for the other: only possible on two threads.
  Meeting meeting;
  parallel_for(2, [&](int64_t) { meeting.wait_for(2); });
  CHECK(!meeting.timed_out);
}

TEST_CASE("each thread begins with indices of its own, the same ones in every loop") {
  const RestoreThreads restore;
  set_thread_count(2);
  const auto caller = std::this_thread::get_id();
  for (int loop = 0; loop < 3; ++loop) {
    Meeting meeting;  // of the two bodies that run first
    std::atomic<int64_t> callers_first{-1}, helpers_first{-1};
    parallel_for(10, [&](int64_t i) {
      int64_t none = -1;
      auto& first = std::this_thread::get_id() == caller ? callers_first : helpers_first;
      if (first.compare_exchange_strong(none, i)) meeting.wait_for(2);
    });
    CHECK(!meeting.timed_out);
    CHECK(callers_first.load() == 0);
    CHECK(helpers_first.load() == 5);
  }
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

TEST_CASE("an exception ends a loop early") {
  const RestoreThreads restore;
  for (const int threads : {1, 2, 3}) {
    set_thread_count(threads);
    std::atomic<int> begun{0};
    const auto run = [&] {
      parallel_for(1000, [&](int64_t) {
        ++begun;
        throw std::runtime_error("first body");
      });
    };
    CHECK_THROWS_AS(run(), std::runtime_error);
    CHECK(begun.load() <= threads);
  }
}

TEST_CASE("a nested call runs on its own thread and does not hang") {
  const RestoreThreads restore;
  set_thread_count(2);
  std::atomic<int> done{0};
  parallel_for(4, [&](int64_t) { parallel_for(4, [&](int64_t) { ++done; }); });
  CHECK(done == 16);
}

TEST_CASE("tasks: loops inside them share the threads that are idle") {
  const RestoreThreads restore;
  for (const int threads : {1, 2, 5}) {
    set_thread_count(threads);
    std::vector<std::atomic<int>> visits(3 * 1000);
    parallel_tasks(3, [&](int64_t task) {
      parallel_for(1000, [&](int64_t i) { ++visits[static_cast<size_t>(task * 1000 + i)]; });
    });
    int wrong = 0;
    for (const auto& v : visits) wrong += v != 1;
    CHECK(wrong == 0);
  }
}

TEST_CASE("tasks: a thread without one helps a loop, the caller's as well") {
  const RestoreThreads restore;
  set_thread_count(2);
  // Both tasks begin, on a thread each. Then one ends, and the two bodies of the other's loop wait
  // for each other.
  for (const bool callers_loops : {true, false}) {
    const auto caller = std::this_thread::get_id();
    Meeting tasks, bodies;
    parallel_tasks(2, [&](int64_t) {
      tasks.wait_for(2);
      if ((std::this_thread::get_id() == caller) != callers_loops) return;
      parallel_for(2, [&](int64_t) { bodies.wait_for(2); });
    });
    CHECK(!tasks.timed_out);
    CHECK(!bodies.timed_out);
  }
}

TEST_CASE("tasks: an exception from a loop inside one reaches the caller") {
  const RestoreThreads restore;
  for (const int threads : {1, 3}) {
    set_thread_count(threads);
    const auto run = [&](int64_t failing) {
      parallel_tasks(4, [&](int64_t task) {
        parallel_for(50, [&](int64_t i) {
          if (task == failing && i == 17) throw std::runtime_error("loop 17");
        });
      });
    };
    CHECK_THROWS_WITH_AS(run(2), "loop 17", std::runtime_error);
    run(-1);  // the pool keeps working
  }
}

TEST_CASE("callers on several threads use the pool at once, and its size may change meanwhile") {
  const RestoreThreads restore;
  set_thread_count(3);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 500; ++round) {
        parallel_tasks(2, [&](int64_t) { parallel_for(5, [&](int64_t i) { sum += i; }); });
      }
    });
  }
  for (int round = 0; round < 20; ++round) set_thread_count(1 + round % 4);
  for (std::thread& caller : callers) caller.join();
  CHECK(sum == int64_t{3} * 500 * 2 * 10);
}

TEST_CASE("an impossible thread count is refused with its bounds") {
  CHECK_THROWS_WITH_AS(set_thread_count(0), "threads: 0 is not in 1 <= threads <= 256", InputError);
  CHECK_THROWS_AS(set_thread_count(257), InputError);
}
