// Reading a node's attributes with a default.
#include <stdexcept>

#include "src/graph/op.h"

namespace lockstep {
namespace {

const Attribute* find_attribute(const Node& node, std::string_view name) {
  const auto found = node.attributes.find(std::string(name));
  return found == node.attributes.end() ? nullptr : &found->second;
}

[[noreturn]] void wrong_type(std::string_view name, const char* wanted) {
  throw std::logic_error("attribute '" + std::string(name) + "' must be " + wanted);
}

}  // namespace

int64_t int_attribute(const Node& node, std::string_view name, int64_t fallback) {
  const Attribute* attribute = find_attribute(node, name);
  if (!attribute) return fallback;
  if (const auto* value = std::get_if<int64_t>(attribute)) return *value;
  wrong_type(name, "an integer");
}

double double_attribute(const Node& node, std::string_view name, double fallback) {
  const Attribute* attribute = find_attribute(node, name);
  if (!attribute) return fallback;
  if (const auto* value = std::get_if<double>(attribute)) return *value;
  if (const auto* value = std::get_if<int64_t>(attribute)) return static_cast<double>(*value);
  wrong_type(name, "a number");
}

bool bool_attribute(const Node& node, std::string_view name, bool fallback) {
  const Attribute* attribute = find_attribute(node, name);
  if (!attribute) return fallback;
  if (const auto* value = std::get_if<bool>(attribute)) return *value;
  wrong_type(name, "true or false");
}

std::string string_attribute(const Node& node, std::string_view name, std::string fallback) {
  const Attribute* attribute = find_attribute(node, name);
  if (!attribute) return fallback;
  if (const auto* value = std::get_if<std::string>(attribute)) return *value;
  wrong_type(name, "a string");
}

std::vector<int64_t> ints_attribute(const Node& node, std::string_view name,
                                    std::vector<int64_t> fallback) {
  const Attribute* attribute = find_attribute(node, name);
  if (!attribute) return fallback;
  if (const auto* value = std::get_if<std::vector<int64_t>>(attribute)) return *value;
  if (const auto* value = std::get_if<int64_t>(attribute)) return {*value};
  wrong_type(name, "a list of integers");
}

}  // namespace lockstep
