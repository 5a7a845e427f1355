// Reads whole text files through a stream; writes them to a second file that is then renamed.
#include "src/core/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/core/error.h"

namespace lockstep {

std::string read_text_file(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    throw InputError("file '" + path + "': is a directory, not a file");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  // An empty file sets the fail bit of `text`, not of `file`.
  if (!file || file.bad()) {
    throw InputError("file '" + path + "': cannot be read: " + std::strerror(errno));
  }
  return text.str();
}

void write_text_file_atomically(const std::string& path, std::string_view text) {
  const std::string partial = path + ".partial";
  const auto fail = [&](const char* what) {
    const int reason = errno;
    std::remove(partial.c_str());
    throw InputError("file '" + path + "': cannot be " + what + ": " + std::strerror(reason));
  };
  const int file = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail("created");
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(file, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int reason = errno;
      ::close(file);
      errno = reason;
      fail("written");
    }
    done += static_cast<size_t>(written);
  }
  if (::close(file) != 0) fail("written");
  if (std::rename(partial.c_str(), path.c_str()) != 0) fail("renamed into place");
}

}  // namespace lockstep
