// The contents of an HDF5 file as plain data (groups, datasets, attributes), and the bytes in which
// one process sends them to another. capture_reader.h decides which names must exist.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/tensor.h"

namespace lockstep {

// An array of numbers, or of texts.
struct CaptureValue {
  enum class Kind : uint8_t { kU8, kI32, kI64, kF32, kF64, kText };
  Kind kind = Kind::kU8;
  Shape shape;
  std::string bytes;               // of the numbers, row-major, in this machine's order
  std::vector<std::string> texts;  // kText

  int64_t size() const { return element_count(shape); }
};
size_t bytes_of(CaptureValue::Kind kind);  // of one number; 0 for texts

struct CaptureNode {
  std::map<std::string, CaptureValue> attributes;
  std::optional<CaptureValue> data;             // of a dataset
  std::map<std::string, CaptureNode> children;  // of a group, names unescaped

  CaptureNode* find(std::string_view name);  // null: no such child
};

// Limits of a tree; real captures are far below them.
inline constexpr int kCaptureDepth = 12;
inline constexpr int64_t kCaptureObjects = 1'000'000;  // attributes included
inline constexpr size_t kCaptureRank = 8, kCaptureNameBytes = 4096;

// Records follow one another: begin and end of groups and datasets, attributes, finally the end.
namespace capture_frame {
std::string group(std::string_view name);
std::string dataset(std::string_view name, const CaptureValue& value);
std::string attribute(std::string_view name, const CaptureValue& value);  // of the open object
std::string close();  // of the innermost group or dataset
std::string finish();
std::string problem(std::string_view text);  // replaces all further records
}  // namespace capture_frame

// `read` fills its argument with the records' next bytes, with fewer only at their end; numbers are
// read straight into their place. At most `most_bytes` are read or allocated.
// Throws: InputError with the problem that the records carry, whose text may hold anything;
// std::runtime_error if the bytes are not such records: nothing in them is trusted.
CaptureNode parse_capture_frames(const std::function<size_t(char* into, size_t count)>& read,
                                 uint64_t most_bytes);

}  // namespace lockstep
