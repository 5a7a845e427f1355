// Reads and writes whole text files through descriptors; a file to be written gets another name
// until it is whole.
#include "src/core/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "src/core/error.h"

namespace lockstep {
namespace {

// What a path names, where a regular file is required; empty for a regular file.
std::string_view other_kind(mode_t mode) {
  constexpr std::pair<mode_t, std::string_view> kKinds[] = {{S_IFDIR, "a directory"},
                                                            {S_IFIFO, "a pipe"},
                                                            {S_IFSOCK, "a socket"},
                                                            {S_IFCHR, "a device"},
                                                            {S_IFBLK, "a device"}};
  for (const auto& [type, words] : kKinds) {
    if ((mode & S_IFMT) == type) return words;
  }
  return "";
}

[[noreturn]] void refuse_kind(const std::string& path, std::string_view kind) {
  throw InputError("file '" + path + "': is " + std::string(kind) + ", not a file",
                   kind == "a pipe" ? "write its content to a file first" : "");
}

[[noreturn]] void cannot_be_read(const std::string& path, int reason) {
  throw InputError("file '" + path + "': cannot be read: " + std::strerror(reason));
}

std::string size_words(size_t bytes) {
  constexpr size_t kMebi = 1 << 20;
  return bytes >= kMebi ? std::to_string(bytes / kMebi) + " MiB" : std::to_string(bytes) + " bytes";
}

// "report.html.partial-1a2b3c4d": free of the files of other programs that write the same path.
std::string partial_name(const std::string& path) {
  char number[16];
  std::snprintf(number, sizeof number, "%08x", static_cast<unsigned>(std::random_device{}()));
  return path + ".partial-" + number;
}

}  // namespace

RegularFile::RegularFile(const std::string& path) {
  if (path.find('\0') != std::string::npos) cannot_be_read(path, ENOENT);
  // A terminal or device that is opened may do something; their kind is known before.
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) cannot_be_read(path, errno);
  const std::string_view kind = other_kind(status.st_mode);
  if (!kind.empty()) refuse_kind(path, kind);
  do {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) cannot_be_read(path, errno);
  // Again, because the path may name another file since.
  const bool is_known = ::fstat(descriptor_, &status) == 0;
  const std::string_view opened = is_known ? other_kind(status.st_mode) : "an unknown thing";
  if (opened.empty()) return;
  ::close(descriptor_);
  refuse_kind(path, opened);
}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int RegularFile::release() {
  return std::exchange(descriptor_, -1);
}

std::string read_text_file(const std::string& path, size_t most) {
  const RegularFile file(path);
  struct stat status = {};
  const bool is_known = ::fstat(file.descriptor(), &status) == 0;
  const size_t expected = is_known ? static_cast<size_t>(std::max<off_t>(status.st_size, 0)) : 0;
  const auto refuse_size = [&] {
    throw InputError("file '" + path + "': has more than " + size_words(most) +
                         ", the most that is read of such a file",
                     "is it another file?");
  };
  if (expected > most) refuse_size();
  std::string text;
  // The size is a first guess: files of /proc have size 0, and others may be growing.
  constexpr size_t kChunk = size_t{1} << 16;
  for (size_t done = 0;;) {
    text.resize(std::max(expected + 1, done + kChunk));
    const ssize_t got = ::read(file.descriptor(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cannot_be_read(path, errno);
    done += static_cast<size_t>(got);
    if (done > most) refuse_size();
    if (got > 0) continue;
    text.resize(done);
    return text;
  }
}

void write_text_file_atomically(const std::string& path, std::string_view text,
                                const std::string& wanted) {
  std::string partial;
  const auto fail = [&](const char* what, int reason) {
    if (!partial.empty()) std::remove(partial.c_str());
    throw InputError("file '" + path + "': cannot be " + what + ": " + std::strerror(reason),
                     write_error_hint(reason));
  };
  int file = -1;
  do {
    // O_EXCL: what has this name already is not followed, waited for or replaced.
    const std::string name = wanted.empty() ? partial_name(path) : wanted;
    if (!wanted.empty()) std::remove(name.c_str());
    file = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0) partial = name;
  } while (file < 0 && (errno == EEXIST || errno == EINTR));
  if (file < 0) fail("created", errno);
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(file, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int reason = errno;
      ::close(file);
      fail("written", reason);
    }
    done += static_cast<size_t>(written);
  }
  if (::close(file) != 0) fail("written", errno);
  if (std::rename(partial.c_str(), path.c_str()) != 0) fail("renamed into place", errno);
}

std::string write_error_hint(int reason) {
  switch (reason) {
    case ENOSPC:
    case EDQUOT:
      return "free some disk space, or write to another disk";
    case EFBIG:
      return "a limit on the size of files (`ulimit -f`) or the file system is in the way";
    case EACCES:
    case EPERM:
      return "name a file in a folder that you may write to";
    case EROFS:
      return "this file system is read-only; name a file on another one";
    case ENOENT:
    case ENOTDIR:
      return "make the folder first";
    case ENAMETOOLONG:
      return "choose a shorter name";
    default:
      return "";
  }
}

}  // namespace lockstep
