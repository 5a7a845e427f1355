// Lets the next step begin while an observer still works on the last one.
// Hands every step to other observers, one after the other, on a thread of its own, one at a time
// and in order. All else waits for that thread and runs on the caller's: evaluations, checkpoints,
// the end. A kill loses at most the step that is computed and the one that is written; a longer
// queue would lose more.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "src/train/observer.h"

namespace lockstep {

class ObserverThread : public Observer {
 public:
  // `to`: not owned. With one thread (thread_count()) they are called directly.
  explicit ObserverThread(std::vector<Observer*> to);
  ~ObserverThread() override;  // after the last step's work; what it throws is lost

  // Throw what an observer throws, or has thrown in the step before.
  void on_start(const RunDescription& description) override;
  void on_step(const StepRecord& record) override;
  void on_evaluation(const EvaluationRecord& record) override;
  void on_checkpoint(const RunStateView& state) override;
  void on_finish() override;

 private:
  void work();
  void wait();

  void tell_step(const StepRecord& record);

  std::vector<Observer*> to_;
  StepRecord record_;  // the thread's while has_record_
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_record_ = false, ends_ = false;  // under the mutex
  std::exception_ptr thrown_;
  std::thread thread_;
};

}  // namespace lockstep
