// See observer_thread.h.
#include "src/train/observer_thread.h"

#include <utility>

#include "src/core/parallel.h"

namespace lockstep {

ObserverThread::ObserverThread(std::vector<Observer*> to) : to_(std::move(to)) {
  if (thread_count() > 1) thread_ = std::thread([this] { work(); });
}

ObserverThread::~ObserverThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ObserverThread::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return has_record_ || ends_; });
    if (!has_record_) return;
    lock.unlock();
    std::exception_ptr thrown;
    try {
      tell_step(record_);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    thrown_ = thrown;
    has_record_ = false;
    changed_.notify_all();
  }
}

void ObserverThread::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !has_record_; });
  if (thrown_ != nullptr) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

void ObserverThread::tell_step(const StepRecord& record) {
  for (Observer* observer : to_) observer->on_step(record);
}

void ObserverThread::on_step(const StepRecord& record) {
  if (!thread_.joinable()) return tell_step(record);
  wait();
  record_ = record;  // keeps its memory
  {
    const std::lock_guard lock(mutex_);
    has_record_ = true;
  }
  changed_.notify_all();
}

void ObserverThread::on_start(const RunDescription& description) {
  wait();
  for (Observer* observer : to_) observer->on_start(description);
}
void ObserverThread::on_evaluation(const EvaluationRecord& record) {
  wait();
  for (Observer* observer : to_) observer->on_evaluation(record);
}
void ObserverThread::on_checkpoint(const RunStateView& state) {
  wait();
  for (Observer* observer : to_) observer->on_checkpoint(state);
}
void ObserverThread::on_finish() {
  wait();
  for (Observer* observer : to_) observer->on_finish();
}

}  // namespace lockstep
