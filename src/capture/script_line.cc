#include "src/capture/script_line.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/json_text.h"

namespace lockstep {
namespace {

constexpr size_t kMostLines = 1 << 18;

// Every key with its member; "of" alone is required.
struct Key {
  const char* name;
  std::string ScriptLine::*member;
};
constexpr Key kKeys[] = {{"of", &ScriptLine::of},
                         {"at", &ScriptLine::at},
                         {"hash", &ScriptLine::hash},
                         {"value", &ScriptLine::value}};

ScriptLine line_from(const nlohmann::json& item, size_t number) {
  const auto refuse = [&](const std::string& what) {
    throw InputError(fmt::format("line {}: {}", number, what));
  };
  ScriptLine line;
  if (!item.is_object()) refuse("must be an object");
  for (const Key& key : kKeys) {
    const auto found = item.find(key.name);
    if (found == item.end()) continue;
    if (!found->is_string()) refuse(fmt::format("{} must be a text", key.name));
    found->get_to(line.*key.member);
    if (line.*key.member != printable(line.*key.member)) {
      refuse(fmt::format("{} holds '{}', must have no control characters", key.name,
                         printable(line.*key.member)));
    }
  }
  if (line.of.empty()) refuse("of is missing");
  return line;
}

}  // namespace

bool have_same_draws(const ScriptLines& before, const ScriptLines& after) {
  const auto draws = [](const ScriptLines& lines) {
    std::map<std::string, std::string> found;
    for (const ScriptLine& line : lines) {
      if (line.of == kMasksLine || line.of.starts_with(kInputLine)) found[line.of] = line.value;
    }
    return found;
  };
  const auto now = draws(after);
  bool has_common_input = false;
  for (const auto& [thing, hash] : draws(before)) {
    const auto same = now.find(thing);
    if (same == now.end()) continue;
    if (same->second != hash) return false;
    has_common_input = has_common_input || thing != kMasksLine;
  }
  return has_common_input && now.contains(kMasksLine);
}

std::string to_json(const ScriptLines& lines) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const ScriptLine& line : lines) {
    nlohmann::ordered_json& one = all.emplace_back(nlohmann::ordered_json::object());
    for (const Key& key : kKeys) {
      if (!(line.*key.member).empty()) one[key.name] = line.*key.member;
    }
  }
  return all.dump();
}

ScriptLines script_lines_from_json(const std::string& text) {
  const nlohmann::json all = parse_json(text);
  if (!all.is_array()) throw InputError("must be a list");
  if (all.size() > kMostLines) {
    throw InputError(fmt::format("{} lines, at most {}", all.size(), kMostLines));
  }
  ScriptLines lines;
  for (const nlohmann::json& item : all) lines.push_back(line_from(item, lines.size()));
  return lines;
}

}  // namespace lockstep
