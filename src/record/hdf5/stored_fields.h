// Reads named fields of a file's tree. A field that is missing, or has another type or shape,
// becomes a problem with its place, and reading continues with a stand-in, so that all problems are
// found at once. For src/record only.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/error.h"
#include "src/core/packed_bits.h"
#include "src/graph/ir.h"
#include "src/record/hdf5/stored_tree.h"

namespace lockstep {

// A group or dataset and its path. A missing one has no node; its fields are then not reported one
// by one.
class StoredFields {
 public:
  StoredFields(StoredNode* node, std::string path, ProblemList& problems)
      : node_(node), path_(std::move(path)), problems_(&problems) {}

  bool there() const { return node_ != nullptr; }
  const StoredNode* node() const { return node_; }
  const std::string& path() const { return path_; }
  ProblemList& problems() const { return *problems_; }
  // Text quoted from the file is made printable and cut to a bounded length.
  void problem(std::string_view what, const std::string& hint = "") const;

  bool has(std::string_view child) const;
  bool has_attribute(std::string_view name) const;
  StoredFields child(std::string_view name) const;     // a problem if it is missing
  StoredFields optional(std::string_view name) const;  // no problem if it is missing
  std::vector<std::string> children() const;           // names, sorted

  // Attributes. A missing one gives `fallback`, with a problem if it is required.
  std::string text(std::string_view name, bool required = true) const;
  std::string plain_text(std::string_view name,
                         bool required = true) const;  // no control characters
  double number(std::string_view name, double fallback, bool required = true) const;
  int64_t integer(std::string_view name, int64_t fallback, bool required = true) const;
  bool flag(std::string_view name, bool fallback, bool required = true) const;
  std::vector<std::string> texts(std::string_view name) const;
  std::optional<Shape> shape(std::string_view name) const;  // nothing after a problem
  nlohmann::json json(std::string_view name) const;         // of a text; discarded after a problem

  // This dataset. Data that are taken leave the tree, so that a capture is in memory only once;
  // taking them again is a problem. Floats arrive as `container`, integers as kI32.
  std::string take_text() const;  // [json]: a row of uint8, or one text
  Tensor take_tensor(const TensorType& type, Container container) const;
  std::vector<double> numbers() const;
  std::vector<uint64_t> take_whole() const;     // a row of integers >= 0
  std::vector<std::string> take_texts() const;  // a row
  // A value of any kind and shape; null after a problem. Its kind decides Container::kF64 and so
  // on.
  StoredValue* value() const { return data(); }
  // Packed bits of this shape. Nothing after a problem.
  std::optional<PackedBits> take_bits(const Shape& extents) const;

 private:
  const StoredValue* attribute(std::string_view name, bool required) const;
  StoredValue* data() const;
  bool to_double(const StoredValue& value, std::string_view name, double& out) const;

  StoredNode* node_;
  std::string path_;
  ProblemList* problems_;
};

}  // namespace lockstep
