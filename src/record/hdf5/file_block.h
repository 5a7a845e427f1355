// The block of bytes before the HDF5 data of captures (docs/capture-file.md) and checkpoints:
// magic, version, length and SHA-256 of the rest. It is checked before HDF5 opens the file, so that
// chance damage is reported as damage.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// A kind of file that has a block.
struct BlockKind {
  std::string_view noun;    // in messages
  std::string_view magic;   // 16 bytes
  std::string_view origin;  // hint for a file without the magic
};
inline constexpr BlockKind kCaptureBlock = {
    "capture", "LOCKSTEP-CAPTURE",
    "lockstep_capture writes such files; an unfinished one lacks this"};
inline constexpr BlockKind kCheckpointBlock = {
    "checkpoint", "LOCKSTEP-STATE-4", "another version of Lockstep wrote it, or it is unfinished"};

struct FileBlock {
  uint64_t size = 0;    // of the block: 512 or a larger power of two
  uint64_t length = 0;  // of the HDF5 data after it
  std::string sha256;   // of these data, 64 hexadecimal digits
};
inline constexpr uint64_t kLeastBlock = 512;

// The first bytes of a regular file, as many as a magic has.
struct FileStart {
  std::string bytes;
  int error = 0;         // the errno; EINVAL: not a regular file
  bool is_hdf5() const;  // begins with HDF5's signature, as run files do
};
FileStart read_file_start(const std::string& path);

// Whether the file begins like one of this kind. Also false if it cannot be read.
bool has_block(const std::string& path, const BlockKind& kind);
inline bool looks_like_capture(const std::string& path) {
  return has_block(path, kCaptureBlock);
}

// FileStart::is_hdf5; also false if the file cannot be read.
bool looks_like_hdf5(const std::string& path);

// Throws: InputError: unreadable, of another kind, newer version, truncated, or changed later.
FileBlock check_file_block(const std::string& path, const BlockKind& kind);

// Writes the block of a file whose HDF5 data begin at byte `size`, and syncs the file.
// Returns: 0, or the errno of what failed.
int write_file_block(const std::string& path, const BlockKind& kind, uint64_t size);

}  // namespace lockstep
