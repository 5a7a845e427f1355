// The IDX reader. Memory is never allocated from the extents in a header: bytes are read first and
// counted afterwards.
#include "src/data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "src/core/text_file.h"

namespace lockstep {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr uint32_t kUnsignedByteType = 0x08;

struct GzClose {
  void operator()(gzFile_s* file) const { gzclose(file); }
};

uint32_t big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

std::string hex(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", value);
  return text;
}

}  // namespace

std::optional<std::vector<uint8_t>> read_maybe_gzip(const std::string& path, ProblemList& problems,
                                                    size_t most) {
  std::unique_ptr<gzFile_s, GzClose> file;
  bool was_opened = false;
  collect_problems(problems, [&] {
    RegularFile regular(path);
    was_opened = true;
    // zlib returns a file without the gzip magic unchanged.
    file.reset(gzdopen(regular.descriptor(), "rb"));
    if (file != nullptr) regular.release();
  });
  if (file == nullptr) {
    if (was_opened) problems.add(path + ": cannot open: " + std::strerror(ENOMEM));
    return std::nullopt;
  }
  std::vector<uint8_t> bytes;
  for (;;) {
    const size_t before = bytes.size();
    bytes.resize(before + kChunkBytes);
    const int got = gzread(file.get(), bytes.data() + before, static_cast<unsigned>(kChunkBytes));
    bytes.resize(before + static_cast<size_t>(std::max(got, 0)));
    if (bytes.size() > most) {
      problems.add(path + ": has more than " + std::to_string(most) + " bytes" +
                       (gzdirect(file.get()) == 1 ? "" : ", unpacked") + ", at most these are read",
                   "is it another file?");
      return std::nullopt;
    }
    if (got == static_cast<int>(kChunkBytes)) continue;

    int code = Z_OK;
    const char* message = gzerror(file.get(), &code);
    if (code == Z_OK || code == Z_STREAM_END) return bytes;
    if (code == Z_BUF_ERROR) {
      problems.add(path + ": truncated: gzip data ends after " + std::to_string(bytes.size()) +
                       " unpacked bytes",
                   "copy or download the file again");
    } else {
      problems.add(path + ": cannot read: " + (code == Z_ERRNO ? std::strerror(errno) : message));
    }
    return std::nullopt;
  }
}

IdxArray read_idx(const std::string& path, size_t rank, ProblemList& problems) {
  const std::optional<std::vector<uint8_t>> content = read_maybe_gzip(path, problems);
  if (!content) return {};
  const std::vector<uint8_t>& bytes = *content;

  const size_t header = 4 + 4 * rank;
  const uint32_t magic = kUnsignedByteType << 8 | static_cast<uint32_t>(rank);
  if (bytes.size() < header) {
    problems.add(path + ": truncated: header needs " + std::to_string(header) + " bytes, found " +
                 std::to_string(bytes.size()));
    return {};
  }
  if (big_endian(bytes.data()) != magic) {
    problems.add(path + ": magic number " + hex(big_endian(bytes.data())) + ", expected " +
                     hex(magic) + " (unsigned bytes, " + std::to_string(rank) + " extents)",
                 "is this an IDX file of the right kind?");
    return {};
  }
  IdxArray array;
  // Saturates far above any file's size, so that the comparison below catches absurd extents.
  uint64_t expected = 1;
  for (size_t i = 0; i < rank; ++i) {
    const uint32_t extent = big_endian(bytes.data() + 4 + 4 * i);
    array.shape.push_back(extent);
    const bool overflows = extent != 0 && expected > (uint64_t{1} << 48) / extent;
    expected = overflows ? uint64_t{1} << 48 : expected * extent;
  }
  const uint64_t found = bytes.size() - header;
  if (found != expected) {
    problems.add(path + (found < expected ? ": truncated" : ": too long") + ": shape " +
                 to_string(array.shape) + " needs " + std::to_string(header + expected) +
                 " bytes, found " + std::to_string(bytes.size()));
    return {};
  }
  array.values.assign(bytes.begin() + static_cast<ptrdiff_t>(header), bytes.end());
  return array;
}

}  // namespace lockstep
