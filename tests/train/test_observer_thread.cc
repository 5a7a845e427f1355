// An observer on a thread of its own: the same calls in the same order, and its errors reach the
// run.
#include "src/train/observer_thread.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

// Slow at steps, so that calls would overtake each other if they could.
struct Slow : Observer {
  void on_start(const RunDescription&) override { calls.emplace_back("start"); }
  void on_step(const StepRecord& record) override {
    thread = std::this_thread::get_id();
    ++begun;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    calls.push_back("step " + std::to_string(record.step));
    if (record.step == fails_at) throw std::runtime_error("full");
  }
  void on_evaluation(const EvaluationRecord&) override { calls.emplace_back("evaluation"); }
  void on_checkpoint(const RunStateView&) override { calls.emplace_back("checkpoint"); }
  void on_finish() override { calls.emplace_back("finish"); }

  int64_t fails_at = -1;
  std::vector<std::string> calls;
  std::atomic<int> begun = 0;
  std::thread::id thread;
};

StepRecord step(int64_t number) {
  StepRecord record;
  record.step = number;
  return record;
}

}  // namespace

TEST_CASE("calls arrive in order, steps on another thread if there are several") {
  for (const int threads : {1, 2}) {
    CAPTURE(threads);
    const ThreadCountGuard guard(threads);
    Slow slow;
    {
      ObserverThread threaded({&slow});
      threaded.on_start({});
      StepRecord record = step(0);
      threaded.on_step(record);
      record.step = 7;  // the caller's record is its own again
      threaded.on_evaluation({});
      threaded.on_step(step(1));
      threaded.on_step(step(2));
      threaded.on_checkpoint({});
      threaded.on_finish();
      threaded.on_step(step(3));  // finished by the destructor
    }
    CHECK(slow.calls == std::vector<std::string>{"start", "step 0", "evaluation", "step 1",
                                                 "step 2", "checkpoint", "finish", "step 3"});
    CHECK((slow.thread == std::this_thread::get_id()) == (threads == 1));
  }
}

TEST_CASE("an error in a step ends the run at its next call, once") {
  for (const int threads : {1, 2}) {
    CAPTURE(threads);
    const ThreadCountGuard guard(threads);
    Slow slow;
    slow.fails_at = 1;
    ObserverThread threaded({&slow});
    threaded.on_step(step(0));
    const auto two = [&] {
      threaded.on_step(step(1));
      threaded.on_step(step(2));
    };
    CHECK_THROWS_WITH_AS(two(), "full", std::runtime_error);
    CHECK(slow.begun == 2);
    threaded.on_checkpoint({});
    CHECK(slow.calls.back() == "checkpoint");
  }
}

TEST_CASE("an error in the last step reaches the checkpoint, or the end, after it") {
  for (const bool at_end : {false, true}) {
    const ThreadCountGuard guard(2);
    Slow slow;
    slow.fails_at = 0;
    ObserverThread threaded({&slow});
    threaded.on_step(step(0));
    const auto next = [&] { at_end ? threaded.on_finish() : threaded.on_checkpoint({}); };
    CHECK_THROWS_WITH_AS(next(), "full", std::runtime_error);
    CHECK(slow.calls == std::vector<std::string>{"step 0"});
  }
}

}  // namespace lockstep
