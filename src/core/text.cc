// Globs, splitting and joining, and reading and writing whole text files.
#include "src/core/text.h"

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

bool glob_match(std::string_view pattern, std::string_view text) {
  // On a mismatch the last '*' takes one character more; earlier ones never need to be revisited.
  constexpr size_t kNone = std::string_view::npos;
  size_t p = 0, t = 0, star = kNone, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != kNone) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string_view::npos; begin = end + 1) {
    parts.emplace_back(text.substr(begin, end - begin));
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

std::string with_thousands(unsigned long long value) {
  std::string text = std::to_string(value);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, 1, ' ');
  return text;
}

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
