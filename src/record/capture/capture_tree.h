// What is in an HDF5 file, without HDF5?
// Groups, datasets and attributes as plain data, and the bytes in which one process hands them to
// another. Which names must be there is capture_reader.h's business.
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

// Limits that a tree must keep; those of honest captures lie far below.
inline constexpr int kCaptureDepth = 12;
inline constexpr int64_t kCaptureObjects = 1'000'000;  // attributes included
inline constexpr size_t kCaptureRank = 8, kCaptureNameBytes = 4096;

// One record after another: begin and end of groups and datasets, attributes, and at last the end.
namespace capture_frame {
std::string group(std::string_view name);
std::string dataset(std::string_view name, const CaptureValue& value);
std::string attribute(std::string_view name, const CaptureValue& value);  // of what is open
std::string close();  // of the innermost group or dataset
std::string finish();
std::string problem(std::string_view text);  // in place of all that would follow
}  // namespace capture_frame

// `read` fills its argument with the records' next bytes, fewer only at their end; numbers go
// straight to their place. No more than `most_bytes` are read or made room for.
// Throws: InputError with the problem that the records carry, whose text may hold anything;
// std::runtime_error where they are no such records: nothing in them is taken on trust.
CaptureNode parse_capture_frames(const std::function<size_t(char* into, size_t count)>& read,
                                 uint64_t most_bytes);

}  // namespace lockstep
