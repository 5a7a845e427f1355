// The pool: threads that wait for a job, take its indices one by one from a shared counter, and
// wait again. The calling thread works too, so a pool of n threads has n-1 workers.
#include "src/core/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/core/error.h"

namespace lockstep {
namespace {

constexpr int kMaxThreads = 256;
// About a microsecond: the jobs of one training step follow each other closely, and waking a
// sleeping thread costs several microseconds. A longer spin would take the core from other work.
constexpr int kSpins = 200;

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// True on a thread that is inside a body: a nested parallel_for then runs on that thread alone.
thread_local bool inside_body = false;

struct Job {
  int64_t count = 0;
  const std::function<void(int64_t)>* body = nullptr;
  std::atomic<int64_t> next{0};
  std::mutex error_mutex;
  std::exception_ptr error;

  void work() {
    inside_body = true;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      try {
        (*body)(i);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        next.store(count, std::memory_order_relaxed);
      }
    }
    inside_body = false;
  }
};

class Pool {
 public:
  Pool() { start(static_cast<int>(std::thread::hardware_concurrency())); }
  ~Pool() { stop(); }

  void resize(int count) {
    const std::lock_guard callers(caller_mutex_);
    if (count == threads()) return;
    stop();
    start(count);
  }
  int threads() const { return thread_count_.load(std::memory_order_relaxed); }

  void run(int64_t count, const std::function<void(int64_t)>& body) {
    const std::lock_guard callers(caller_mutex_);
    Job job;
    job.count = count;
    job.body = &body;
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    job.work();
    // Workers that wake too late find no job. Wait for those that have begun.
    std::unique_lock lock(mutex_);
    job_ = nullptr;
    for (int spin = 0; working_ > 0 && spin < kSpins; ++spin) {
      lock.unlock();
      pause_briefly();
      lock.lock();
    }
    idle_.wait(lock, [&] { return working_ == 0; });
    lock.unlock();
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  void start(int count) {
    count = std::clamp(count, 1, kMaxThreads);
    stopping_ = false;
    thread_count_ = count;
    for (int i = 1; i < count; ++i) workers_.emplace_back([this] { loop(); });
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  void loop() {
    uint64_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins; ++spin) {
        if (generation_.load(std::memory_order_acquire) != seen) break;
        pause_briefly();
      }
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
      seen = generation_.load(std::memory_order_relaxed);
      if (stopping_) return;
      if (job_ == nullptr) continue;
      Job* job = job_;
      ++working_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--working_ == 0) idle_.notify_one();
    }
  }

  std::mutex caller_mutex_;  // one job at a time
  std::mutex mutex_;         // guards job_, working_, stopping_ and changes of generation_
  std::condition_variable wake_, idle_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> thread_count_{1};
  Job* job_ = nullptr;
  int working_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

Pool& pool() {
  static Pool instance;
  return instance;
}

}  // namespace

void set_thread_count(int count) {
  if (count < 1 || count > kMaxThreads) {
    throw InputError("threads: " + std::to_string(count) +
                     " is not in 1 <= threads <= " + std::to_string(kMaxThreads));
  }
  pool().resize(count);
}

int thread_count() {
  return pool().threads();
}

void parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  if (count <= 0) return;
  if (count == 1 || inside_body || thread_count() == 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  pool().run(count, body);
}

}  // namespace lockstep
