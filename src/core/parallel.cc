// The pool: threads that look for a job, take its indices one by one, and look again. The calling
// thread works too, so a pool of n threads has n-1 workers. Several jobs may be open at once: those
// of tasks, and of the loops that run inside tasks.
#include "src/core/parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
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
// How long a thread without work looks for some before it sleeps. The loops of a training step
// follow each other within microseconds; waking a sleeping thread costs up to 50 of them in a
// virtual machine.
constexpr auto kPatience = std::chrono::microseconds(200);
constexpr int kPauses = 50;  // between two looks at the clock: a few microseconds at most

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Waits until is_done(), but no longer than kPatience. Other threads and programs that need the
// core get it every few microseconds.
template <class IsDone>
void wait_awake(const IsDone& is_done) {
  using Clock = std::chrono::steady_clock;
  for (const auto end = Clock::now() + kPatience; Clock::now() < end; std::this_thread::yield()) {
    for (int i = 0; i < kPauses; ++i) {
      if (is_done()) return;
      pause_briefly();
    }
  }
}

// True on a thread that is inside a body of parallel_for: a nested one then runs on it alone.
thread_local bool inside_loop = false;
thread_local int thread_number = 0;  // workers count from 1

enum class Level { kTasks, kLoop };

// The indices of a loop, in one range for each thread, but for at most kMostRanges; those of tasks
// in one range, since the first task is the one that the others wait for. A thread begins with its
// own range: there it finds in its core's caches what it wrote in the loop before. Then it helps
// with the others.
class Indices {
 public:
  Indices(int64_t count, int ranges)
      : ranges_(static_cast<int>(std::min<int64_t>({ranges, count, kMostRanges}))) {
    for (int r = 0; r < ranges_; ++r) {
      range_[r].next = count * r / ranges_;
      range_[r].end = count * (r + 1) / ranges_;
    }
  }
  // Calls body(i) with indices that no other thread has taken, until none is left.
  template <class Body>
  void take_all(const Body& body) {
    for (int r = 0; r < ranges_; ++r) {
      Range& range = range_[(thread_number + r) % ranges_];
      while (range.next.load(std::memory_order_relaxed) < range.end) {
        const int64_t i = range.next.fetch_add(1, std::memory_order_relaxed);
        if (i < range.end) body(i);
      }
    }
    is_empty_.store(true, std::memory_order_relaxed);
  }
  // Once a thread has found nothing left.
  bool is_empty() const { return is_empty_.load(std::memory_order_relaxed); }
  void drop_rest() {
    for (int r = 0; r < ranges_; ++r) {
      range_[r].next.store(range_[r].end, std::memory_order_relaxed);
    }
  }

 private:
  static constexpr int kMostRanges = 32;  // 2 KB on the caller's stack
  static constexpr int kCacheLine = 64;
  struct alignas(kCacheLine) Range {
    std::atomic<int64_t> next;
    int64_t end;
  };
  const int ranges_;
  std::atomic<bool> is_empty_{false};
  Range range_[kMostRanges];
};

struct Job {
  Job(Level job_level, int64_t count, int threads, const std::function<void(int64_t)>& job_body)
      : level(job_level), indices(count, level == Level::kLoop ? threads : 1), body(job_body) {}
  const Level level;
  Indices indices;
  const std::function<void(int64_t)>& body;
  std::atomic<int> helpers{0};  // other threads inside; changed under the pool's mutex
  std::mutex error_mutex;
  std::exception_ptr error;

  void work() {
    if (level == Level::kLoop) inside_loop = true;
    indices.take_all([&](int64_t i) {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        indices.drop_rest();
      }
    });
    if (level == Level::kLoop) inside_loop = false;
  }
};

class Pool {
 public:
  Pool() { start(static_cast<int>(std::thread::hardware_concurrency())); }
  ~Pool() { stop(); }

  void resize(int count) {
    const std::lock_guard resizing(resize_mutex_);
    if (count == threads()) return;
    stop();
    start(count);
  }
  int threads() const { return thread_count_.load(std::memory_order_relaxed); }

  void run(Level level, int64_t count, const std::function<void(int64_t)>& body) {
    Job job(level, count, threads(), body);
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(&job);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    job.work();
    {
      const std::lock_guard lock(mutex_);
      std::erase(jobs_, &job);  // helpers that come too late find it gone
    }
    wait_for_helpers(job);
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  void start(int count) {
    count = std::clamp(count, 1, kMaxThreads);
    {
      const std::lock_guard lock(mutex_);
      stopping_ = false;
    }
    thread_count_ = count;
    for (int i = 1; i < count; ++i) workers_.emplace_back([this, i] { loop(i); });
  }

  // Open jobs continue without workers.
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

  // The oldest comes first: tasks before the loops inside them.
  Job* open_job() const {
    const auto found =
        std::ranges::find_if(jobs_, [](const Job* job) { return !job->indices.is_empty(); });
    return found == jobs_.end() ? nullptr : *found;
  }

  // Takes part in an open job; false if there is none. `seen`: the jobs that were looked at.
  bool help(uint64_t& seen) {
    std::unique_lock lock(mutex_);
    seen = generation_.load(std::memory_order_relaxed);
    Job* job = stopping_ ? nullptr : open_job();
    if (job == nullptr) return false;
    ++job->helpers;
    lock.unlock();
    const Level level = job->level;
    job->work();
    lock.lock();
    // The job's caller may leave with it as soon as there are no helpers.
    if (job->helpers.fetch_sub(1, std::memory_order_release) == 1) caller_of(level).notify_all();
    return true;
  }

  // Callers of tasks hold nothing and help other jobs while they wait; callers of loops wait inside
  // an operator, whose buffers belong to their thread.
  void wait_for_helpers(Job& job) {
    const bool helps = job.level == Level::kTasks;
    uint64_t seen = 0;
    const auto is_done = [&] { return job.helpers.load(std::memory_order_acquire) == 0; };
    const auto has_news = [&] { return helps && generation_.load() != seen; };
    while (!is_done()) {
      if (helps && help(seen)) continue;
      wait_awake([&] { return is_done() || has_news(); });
      std::unique_lock lock(mutex_);
      caller_of(job.level).wait(lock, [&] { return is_done() || has_news(); });
    }
  }
  std::condition_variable& caller_of(Level level) { return level == Level::kTasks ? wake_ : idle_; }

  void loop(int number) {
    thread_number = number;
    uint64_t seen = 0;
    while (true) {
      wait_awake([&] { return generation_.load(std::memory_order_acquire) != seen; });
      {
        std::unique_lock lock(mutex_);
        wake_.wait(
            lock, [&] { return stopping_ || generation_.load(std::memory_order_relaxed) != seen; });
        if (stopping_) return;
      }
      while (help(seen)) {
      }
    }
  }

  std::mutex resize_mutex_;
  std::mutex mutex_;  // guards jobs_, stopping_, and changes of generation_ and of jobs' helpers
  std::condition_variable wake_;         // a job is there, or a task's last helper has left
  std::condition_variable idle_;         // a loop's last helper has left
  std::atomic<uint64_t> generation_{0};  // how many jobs there were
  std::atomic<int> thread_count_{1};
  std::vector<Job*> jobs_;  // open, in the order they began
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

namespace {

void run_or_loop(Level level, int64_t count, const std::function<void(int64_t)>& body) {
  if (count <= 0) return;
  if (count == 1 || inside_loop || thread_count() == 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  pool().run(level, count, body);
}

}  // namespace

void parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  run_or_loop(Level::kLoop, count, body);
}

void parallel_tasks(int64_t count, const std::function<void(int64_t)>& body) {
  run_or_loop(Level::kTasks, count, body);
}

}  // namespace lockstep
