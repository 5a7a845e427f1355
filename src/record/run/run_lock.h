// One program at a time writes a run file, or the folder of an ensemble: RUN.lock is locked while a
// program writes RUN or anything next to it. The lock ends with its program; the program that
// unlocks it removes the file. Not enforced on file systems without locks. It is a file
// of its own, since a fresh run has no run file to lock. Process ids in it would be no lock: they
// are used again, and mean nothing on another host.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

namespace lockstep {

class RunLock {
 public:
  explicit RunLock(const std::string& run_path);  // as lock_run, for it alone
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock();

 private:
  std::string path_;
  int file_ = -1;  // -1: locks do not exist here
};

// Locks RUN, or shares the lock that this program already has. Throws: InputError: another program
// has held the lock for a second, or the folder cannot be written.
std::shared_ptr<RunLock> lock_run(const std::string& run_path);

// Throws: InputError if a program writes this file by another of its names.
void refuse_locked_file(const std::string& path);

// Whether another program has locked RUN: what this one writes is in a state that it can read.
bool is_being_written(const std::string& run_path);

// A second, in which another program may end what it does.
inline constexpr int kLockAttempts = 20;
inline constexpr auto kLockPause = std::chrono::milliseconds(50);

// Runs `read` again, for a second, while it throws an Error and another program writes RUN: a
// reader may meet parts of two states. Throws: the last Error.
template <typename Error, typename Read>
auto read_while_written(const std::string& run_path, Read read) {
  for (int attempt = 1;; ++attempt) {
    const bool was_written = is_being_written(run_path);
    try {
      return read();
    } catch (const Error&) {
      if (attempt == kLockAttempts || (!was_written && !is_being_written(run_path))) throw;
    }
    std::this_thread::sleep_for(kLockPause);
  }
}

}  // namespace lockstep
