// Reads a whole text file, and writes one so that no reader sees half of it. Only regular files are
// read: a pipe would wait for its writer, and a device may never end.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

// A descriptor of a regular file, open for reading; never waits.
class RegularFile {
 public:
  // Follows symbolic links. Throws: InputError naming the path, and the reason or what it is
  // instead: a folder, pipe, socket or device.
  explicit RegularFile(const std::string& path);
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  int descriptor() const { return descriptor_; }
  int release();  // the caller closes it

 private:
  int descriptor_ = -1;
};

inline constexpr size_t kMostFileBytes = size_t{1} << 30;

// The whole file. Throws: InputError naming the path and the reason: it is not a regular file,
// cannot be read, or has more than `most` bytes.
std::string read_text_file(const std::string& path, size_t most = kMostFileBytes);
// Writes a file next to `path` and renames it, so that a reader sees the old or the new file.
// Throws: InputError naming the path, the reason, and what to do about that reason. `partial`: the
// name of the file that is renamed, for a caller that alone may write it and needs to leave no
// others after a kill; a file of that name is removed. By default a new name.
void write_text_file_atomically(const std::string& path, std::string_view text,
                                const std::string& partial = "");

// What to do about a file that cannot be written, by its errno: "free some disk space", ...; empty
// where nothing general can be said.
std::string write_error_hint(int reason);

}  // namespace lockstep
