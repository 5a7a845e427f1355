// The contents of an HDF5 file as plain data (groups, datasets, attributes), and the bytes in which
// one process sends them to another. The readers of captures, run files and checkpoints decide
// which names must exist.
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
struct StoredValue {
  // Checksums in run files contain these numbers.
  enum class Kind : uint8_t { kU8, kI32, kU32, kI64, kU64, kF32, kF64, kText, kBf16 };
  Kind kind = Kind::kU8;
  Shape shape;
  std::string bytes;               // of the numbers, row-major, in this machine's order
  std::vector<std::string> texts;  // kText
  bool is_extent = false;          // the contents were left out: neither bytes nor texts

  int64_t size() const { return element_count(shape); }
};
size_t bytes_of(StoredValue::Kind kind);  // of one number; 0 for texts

// What a text of a file may hold: UTF-8, without control characters or with any.
enum class TextRule : uint8_t { kPrintable, kAny };
bool is_stored_text(std::string_view text, TextRule rule);

struct StoredNode {
  std::map<std::string, StoredValue> attributes;
  std::optional<StoredValue> data;             // of a dataset
  std::map<std::string, StoredNode> children;  // of a group, names unescaped

  StoredNode* find(std::string_view name);  // null: no such child
};

// Limits of a tree; real files are far below them.
inline constexpr int kStoredDepth = 12;
inline constexpr int64_t kStoredObjects = 1'000'000;  // attributes included
inline constexpr size_t kStoredRank = 8, kStoredNameBytes = 4096;

// Records follow one another: begin and end of groups and datasets, attributes, finally the end.
namespace stored_frame {
std::string group(std::string_view name);
std::string dataset(std::string_view name, const StoredValue& value);
std::string attribute(std::string_view name, const StoredValue& value);  // of the open object
std::string close();  // of the innermost group or dataset
std::string finish();
std::string problem(std::string_view text);  // replaces all further records
}  // namespace stored_frame

// `read` fills its argument with the records' next bytes, with fewer only at their end; numbers are
// read straight into their place. At most `most_bytes` are read or allocated.
// Nothing is read after the records' end. Throws: InputError with the problem that the records
// carry, whose text may hold anything; std::runtime_error if the bytes are not such records:
// nothing in them is trusted.
StoredNode parse_stored_frames(const std::function<size_t(char* into, size_t count)>& read,
                               uint64_t most_bytes, TextRule texts = TextRule::kPrintable);

}  // namespace lockstep
