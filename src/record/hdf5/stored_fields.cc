#include "src/record/hdf5/stored_fields.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/text.h"
#include "src/graph/infer.h"
#include "src/graph/json_text.h"

namespace lockstep {
namespace {

using Kind = StoredValue::Kind;

template <typename T>
T element(const StoredValue& value, int64_t i) {
  T x;
  std::memcpy(&x, value.bytes.data() + static_cast<size_t>(i) * sizeof x, sizeof x);
  return x;
}

// Any number as a double; integers beyond 2^53 lose digits, which no field needs.
double as_double(const StoredValue& value, int64_t i) {
  switch (value.kind) {
    case Kind::kU8:
      return element<uint8_t>(value, i);
    case Kind::kI32:
      return element<int32_t>(value, i);
    case Kind::kU32:
      return element<uint32_t>(value, i);
    case Kind::kI64:
      return static_cast<double>(element<int64_t>(value, i));
    case Kind::kU64:
      return static_cast<double>(element<uint64_t>(value, i));
    case Kind::kF32:
      return element<float>(value, i);
    case Kind::kF64:
      return element<double>(value, i);
    case Kind::kBf16:
      return std::bit_cast<float>(uint32_t{element<uint16_t>(value, i)} << 16);
    case Kind::kText:
      break;
  }
  throw std::logic_error("as_double: a text");
}

bool is_float(Kind kind) {
  return kind == Kind::kF32 || kind == Kind::kF64 || kind == Kind::kBf16;
}
bool is_integer(Kind kind) {
  return kind != Kind::kText && !is_float(kind);
}

std::string_view name_of(Kind kind) {
  constexpr std::string_view kNames[] = {"uint8",   "int32",   "uint32", "int64",   "uint64",
                                         "float32", "float64", "text",   "bfloat16"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

void StoredFields::problem(std::string_view what, const std::string& hint) const {
  constexpr size_t kMostBytes = 1000;  // a damaged file may have names of any length
  const char* between = path_.ends_with(':') ? " " : ": ";  // "run.h5: ..." of the file itself
  problems_->add(printable(path_ + between + std::string(what), kMostBytes), hint);
}

bool StoredFields::has(std::string_view child) const {
  return node_ != nullptr && node_->find(child) != nullptr;
}
bool StoredFields::has_attribute(std::string_view name) const {
  return node_ != nullptr && node_->attributes.contains(std::string(name));
}

StoredFields StoredFields::child(std::string_view name) const {
  StoredFields found = optional(name);
  if (node_ != nullptr && !found.there()) found.problem("is missing");
  return found;
}
StoredFields StoredFields::optional(std::string_view name) const {
  return {node_ == nullptr ? nullptr : node_->find(name), path_ + "/" + std::string(name),
          *problems_};
}
std::vector<std::string> StoredFields::children() const {
  std::vector<std::string> names;
  if (node_ == nullptr) return names;
  for (const auto& [name, unused] : node_->children) names.push_back(name);
  return names;
}

const StoredValue* StoredFields::attribute(std::string_view name, bool required) const {
  if (node_ == nullptr) return nullptr;
  const auto found = node_->attributes.find(std::string(name));
  if (found != node_->attributes.end()) return &found->second;
  if (required) problem(fmt::format("attribute {} is missing", name));
  return nullptr;
}

std::string StoredFields::text(std::string_view name, bool required) const {
  const StoredValue* found = attribute(name, required);
  if (found == nullptr) return "";
  if (found->kind == Kind::kText && found->texts.size() == 1) return found->texts[0];
  problem(fmt::format("attribute {} must be one text, is {}{}", name, name_of(found->kind),
                      to_string(found->shape)));
  return "";
}

bool StoredFields::to_double(const StoredValue& value, std::string_view name, double& out) const {
  if (value.kind != Kind::kText && value.size() == 1) {
    out = as_double(value, 0);
    return true;
  }
  problem(fmt::format("attribute {} must be one number, is {}{}", name, name_of(value.kind),
                      to_string(value.shape)));
  return false;
}

double StoredFields::number(std::string_view name, double fallback, bool required) const {
  const StoredValue* found = attribute(name, required);
  double value = fallback;
  return found != nullptr && to_double(*found, name, value) ? value : fallback;
}

int64_t StoredFields::integer(std::string_view name, int64_t fallback, bool required) const {
  const StoredValue* found = attribute(name, required);
  double value = 0;
  if (found == nullptr || !to_double(*found, name, value)) return fallback;
  constexpr double kLargest = 1e15;
  if (is_integer(found->kind) && std::abs(value) <= kLargest) return static_cast<int64_t>(value);
  problem(fmt::format("attribute {} must be an integer, is {}", name, value));
  return fallback;
}

bool StoredFields::flag(std::string_view name, bool fallback, bool required) const {
  const int64_t value = integer(name, fallback ? 1 : 0, required);
  if (value != 0 && value != 1) {
    problem(fmt::format("attribute {} must be 0 or 1, is {}", name, value));
  }
  return value == 1;
}

std::vector<std::string> StoredFields::texts(std::string_view name) const {
  const StoredValue* found = attribute(name, /*required=*/true);
  if (found == nullptr) return {};
  if (found->kind == Kind::kText) return found->texts;
  if (found->size() == 0) return {};  // an empty list has no type
  problem(fmt::format("attribute {} must be a list of texts, is {}", name, name_of(found->kind)));
  return {};
}

std::optional<Shape> StoredFields::shape(std::string_view name) const {
  const StoredValue* found = attribute(name, /*required=*/true);
  if (found == nullptr) return std::nullopt;
  const bool is_list = found->shape.size() == 1 && (is_integer(found->kind) || found->size() == 0);
  if (!is_list || found->size() > static_cast<int64_t>(kStoredRank)) {
    problem(fmt::format("attribute {} must be a list of at most {} integers", name, kStoredRank));
    return std::nullopt;
  }
  Shape shape;
  for (int64_t i = 0; i < found->size(); ++i) {
    const double extent = as_double(*found, i);
    if (!(extent >= 0 && extent <= static_cast<double>(kMostExtent))) {
      problem(
          fmt::format("attribute {} has extent {}, must be in [0, {}]", name, extent, kMostExtent));
      return std::nullopt;
    }
    shape.push_back(static_cast<int64_t>(extent));
  }
  return shape;
}

nlohmann::json StoredFields::json(std::string_view name) const {
  const std::string source = text(name);
  if (source.empty() && !has_attribute(name)) return nlohmann::json::value_t::discarded;
  try {
    return parse_json(source);
  } catch (const InputError& error) {
    problem(fmt::format("attribute {}: {}", name, error.what()));
    return nlohmann::json::value_t::discarded;
  }
}

StoredValue* StoredFields::data() const {
  if (node_ == nullptr) return nullptr;
  if (!node_->data) {
    problem("must be a dataset, is a group");
    return nullptr;
  }
  StoredValue& found = *node_->data;
  if (found.kind != Kind::kText && !found.is_extent &&
      found.bytes.size() != static_cast<size_t>(found.size()) * bytes_of(found.kind)) {
    problem("is used in two places, must be in one");
    return nullptr;
  }
  return &found;
}

std::string StoredFields::take_text() const {
  StoredValue* found = data();
  if (found == nullptr) return "";
  if (found->kind == Kind::kU8 && found->shape.size() == 1) return std::exchange(found->bytes, {});
  if (found->texts.size() == 1) return std::exchange(found->texts, {}).front();
  problem(fmt::format("must be one text or a row of uint8, is {}{}", name_of(found->kind),
                      to_string(found->shape)));
  return "";
}

Tensor StoredFields::take_tensor(const TensorType& type, Container container) const {
  StoredValue* found = data();
  if (found == nullptr) return {};
  const bool is_int = type.element == ElementType::kInt;
  const bool fits = is_int ? is_integer(found->kind) : is_float(found->kind);
  if (!fits || found->shape != type.shape) {
    problem(fmt::format("is {}{}, must be {}{}", name_of(found->kind), to_string(found->shape),
                        is_int                         ? "int32"
                        : container == Container::kF64 ? "float64"
                                                       : "float32",
                        to_string(type.shape)));
    return {};
  }
  Tensor out(type.shape, is_int ? Container::kI32 : container);
  for (int64_t i = 0; i < out.size(); ++i) {
    const double x = as_double(*found, i);
    const auto at = static_cast<size_t>(i);
    if (is_int) {
      constexpr double kMost = std::numeric_limits<int32_t>::max();
      if (!(x >= -kMost - 1 && x <= kMost)) {
        problem(fmt::format("element {} is {}, must be an int32", i, x));
        return {};
      }
      out.as<int32_t>()[at] = static_cast<int32_t>(x);
    } else if (container == Container::kF64) {
      out.as<double>()[at] = x;
    } else {
      out.as<float>()[at] = static_cast<float>(x);
    }
  }
  std::string().swap(found->bytes);
  return out;
}

std::string StoredFields::plain_text(std::string_view name, bool required) const {
  std::string found = text(name, required);
  if (is_stored_text(found, TextRule::kPrintable)) return found;
  problem(fmt::format("attribute {} is '{}', must have no control characters", name, found));
  return "";
}

std::vector<double> StoredFields::numbers() const {
  const StoredValue* found = data();
  std::vector<double> out;
  if (found == nullptr) return out;
  if (found->kind == Kind::kText || found->shape.size() > 1) {
    problem("must be a row of numbers");
    return out;
  }
  for (int64_t i = 0; i < found->size(); ++i) out.push_back(as_double(*found, i));
  return out;
}

std::vector<uint64_t> StoredFields::take_whole() const {
  StoredValue* found = data();
  std::vector<uint64_t> out;
  if (found == nullptr) return out;
  if (!is_integer(found->kind) || found->shape.size() != 1) {
    problem(fmt::format("must be a row of integers, is {}{}", name_of(found->kind),
                        to_string(found->shape)));
    return out;
  }
  for (int64_t i = 0; i < found->size(); ++i) {
    if (found->kind == Kind::kU64) {
      out.push_back(element<uint64_t>(*found, i));
      continue;
    }
    const int64_t x = found->kind == Kind::kI64 ? element<int64_t>(*found, i)
                                                : static_cast<int64_t>(as_double(*found, i));
    if (x < 0) {
      problem(fmt::format("element {} is {}, must be >= 0", i, x));
      return {};
    }
    out.push_back(static_cast<uint64_t>(x));
  }
  std::string().swap(found->bytes);
  return out;
}

std::vector<std::string> StoredFields::take_texts() const {
  StoredValue* found = data();
  if (found == nullptr) return {};
  if (found->kind == Kind::kText && found->shape.size() == 1) {
    return std::exchange(found->texts, {});
  }
  problem(fmt::format("must be a row of texts, is {}{}", name_of(found->kind),
                      to_string(found->shape)));
  return {};
}

std::optional<PackedBits> StoredFields::take_bits(const Shape& extents) const {
  StoredValue* found = data();
  if (found == nullptr) return std::nullopt;
  const int64_t wanted = packed_bytes(element_count(extents));
  if (found->kind != Kind::kU8 || found->shape != Shape{wanted}) {
    problem(fmt::format("is {}{}, the packed bits of shape {} are uint8[{}]", name_of(found->kind),
                        to_string(found->shape), to_string(extents), wanted));
    return std::nullopt;
  }
  PackedBits bits{extents, {found->bytes.begin(), found->bytes.end()}};
  std::string().swap(found->bytes);
  return bits;
}

}  // namespace lockstep
