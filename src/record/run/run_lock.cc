#include "src/record/run/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>

#include "src/core/error.h"

namespace lockstep {
namespace {

std::string lock_path(const std::string& run_path) {
  return run_path + ".lock";
}

// Whether `path` still leads to the open file: who unlocked it may have removed it since.
bool leads_to(const std::string& path, int file) {
  struct stat there = {}, here = {};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(file, &here) == 0 &&
         there.st_dev == here.st_dev && there.st_ino == here.st_ino;
}

// The lock of an open file description, so that a query does not take it (fcntl(2), OFD locks).
struct flock whole_file() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

// The locks of lock_run, by path.
struct OwnLocks {
  std::mutex guard;
  std::map<std::string, std::weak_ptr<RunLock>> held;
};

OwnLocks& own_locks() {
  static OwnLocks locks;
  return locks;
}

std::string whole_path(const std::string& run_path) {
  std::error_code ignored;  // an unresolvable path is taken as written
  const std::string whole =
      std::filesystem::weakly_canonical(std::filesystem::absolute(run_path), ignored).string();
  return whole.empty() ? run_path : whole;
}

bool is_ours(const std::string& run_path) {
  OwnLocks& own = own_locks();
  const std::lock_guard guard(own.guard);
  const auto found = own.held.find(whole_path(run_path));
  return found != own.held.end() && !found->second.expired();
}

[[noreturn]] void refuse(const std::string& run_path) {
  throw InputError(fmt::format("'{}': another program is writing it", run_path),
                   "wait until it ends, or choose another name");
}

}  // namespace

// A lock that is taken is tried again: that of a program with two threads was seen to outlast its
// kill,
// and its parent's wait for it, by a moment (Linux 6.18).
RunLock::RunLock(const std::string& run_path) : path_(lock_path(run_path)) {
  for (int attempt = 1;;) {
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file_ < 0) {
      const int why = errno;
      throw InputError(fmt::format("'{}': cannot be written: {}", run_path, std::strerror(why)),
                       why == ENOSPC || why == EDQUOT
                           ? "free some disk space"
                           : "does the folder exist, and is it writable?");
    }
    struct flock lock = whole_file();
    if (::fcntl(file_, F_OFD_SETLK, &lock) != 0) {
      const bool is_taken = errno == EAGAIN || errno == EACCES;
      ::close(file_);
      file_ = -1;
      if (is_taken) {
        if (attempt++ == kLockAttempts) refuse(run_path);
        std::this_thread::sleep_for(kLockPause);
        continue;
      }
      ::unlink(path_.c_str());
      return;  // a file system without locks
    }
    if (leads_to(path_, file_)) return;
    ::close(file_);
  }
}

RunLock::~RunLock() {
  if (file_ < 0) return;
  ::unlink(path_.c_str());  // before it is unlocked: afterwards it may be another program's
  ::close(file_);
}

std::shared_ptr<RunLock> lock_run(const std::string& run_path) {
  OwnLocks& own = own_locks();
  const std::lock_guard guard(own.guard);
  std::weak_ptr<RunLock>& ours = own.held[whole_path(run_path)];
  if (std::shared_ptr<RunLock> lock = ours.lock()) return lock;
  auto lock = std::make_shared<RunLock>(run_path);
  ours = lock;
  return lock;
}

void refuse_locked_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return;  // who writes it finds out why
  const bool is_taken = ::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  if (!is_taken) return;
  throw InputError(fmt::format("'{}': another program has it open", path),
                   "wait until it ends, or choose another name");
}

bool is_being_written(const std::string& run_path) {
  if (is_ours(run_path)) return false;
  const int file = ::open(lock_path(run_path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return false;
  struct flock lock = whole_file();
  const bool is_taken = ::fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(file);
  return is_taken;
}

}  // namespace lockstep
