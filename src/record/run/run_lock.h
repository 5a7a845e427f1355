// One program at a time writes a run file, or the folder of an ensemble: RUN.lock is locked while a
// program writes RUN or anything next to it. The lock ends with its program; the program that
// unlocks it removes the file. Not enforced on file systems without locks.
#pragma once

#include <memory>
#include <string>

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
// writes it, or its folder cannot be written.
std::shared_ptr<RunLock> lock_run(const std::string& run_path);

// Throws: InputError if a program writes this file by another of its names.
void refuse_locked_file(const std::string& path);

// Whether a program has locked RUN.
bool is_being_written(const std::string& run_path);

}  // namespace lockstep
