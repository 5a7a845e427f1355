// See json_text.h.
#include "src/graph/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "src/core/error.h"

namespace lockstep {
namespace {

// The nesting depth of brackets outside of strings.
int depth_of(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      deepest = std::max(deepest, ++depth);
    } else if (!in_string && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return deepest;
}

std::string array_lines(const nlohmann::ordered_json& array) {
  std::string text;
  for (const auto& element : array) text += (text.empty() ? "[\n " : ",\n ") + element.dump();
  return text.empty() ? "[]" : text + "]";
}

}  // namespace

void require_bounded_json(std::string_view text) {
  if (text.size() > kMostJsonBytes) {
    throw InputError("has " + std::to_string(text.size()) + " bytes of JSON, at most " +
                     std::to_string(kMostJsonBytes) + " allowed");
  }
  if (const int depth = depth_of(text); depth > kMostJsonDepth) {
    throw InputError("is JSON nested " + std::to_string(depth) + " deep, at most " +
                     std::to_string(kMostJsonDepth) + " allowed");
  }
}

nlohmann::json parse_json(std::string_view text) {
  require_bounded_json(text);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    throw InputError("is not valid JSON: error at byte " + std::to_string(error.byte) + " of " +
                     std::to_string(text.size()));
  } catch (const nlohmann::json::out_of_range&) {
    throw InputError("is not valid JSON: it has a number beyond the range of double");
  }
}

bool same_json(std::string_view a, std::string_view b) {
  if (a == b) return true;
  try {
    // As text: nlohmann's == would take 1 for 1.0.
    return parse_json(a).dump() == parse_json(b).dump();
  } catch (const InputError&) {
    return false;
  }
}

std::string json_lines(const nlohmann::ordered_json& json) {
  if (json.is_array()) return array_lines(json) + "\n";
  std::string text;
  for (const auto& [key, value] : json.items()) {
    text += (text.empty() ? "{" : ",\n") + nlohmann::json(key).dump() + ":";
    text += value.is_array() ? array_lines(value) : value.dump();
  }
  return text.empty() ? "{}\n" : text + "}\n";
}

}  // namespace lockstep
