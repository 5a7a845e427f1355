// Tables become lines "section.key = value" in alphabetic order; lists of tables, whose order
// matters, are aligned by their longest common subsequence.
#include "analysis/pair/policy_change.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "analysis/pair/pairing.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/policy/parse/toml_text.h"

namespace lockstep {
namespace {

struct Settings {
  std::map<std::string, std::string> values;              // by path
  std::map<std::string, std::vector<std::string>> lists;  // of tables, by path
};

std::string value_text(const toml::node& value) {
  constexpr auto kFlags =
      toml::toml_formatter::default_flags & ~toml::format_flags::allow_literal_strings;
  std::ostringstream out;
  if (const auto* array = value.as_array()) {
    out << toml::toml_formatter(*array, kFlags);
  } else {
    value.visit([&](const auto& node) { out << toml::toml_formatter(node, kFlags); });
  }
  std::string text = out.str();
  std::ranges::replace(text, '\n', ' ');
  return text;
}

void add_settings(const toml::table& table, const std::string& prefix, Settings& out);

// "compute = "fp32", layer = "fc1"".
std::string one_line(const toml::table& table) {
  Settings settings;
  add_settings(table, "", settings);
  std::vector<std::string> parts;
  for (const auto& [path, value] : settings.values) parts.push_back(path + " = " + value);
  for (const auto& [path, rows] : settings.lists) {
    for (const std::string& row : rows) parts.push_back(fmt::format("{} = {{{}}}", path, row));
  }
  return join(parts, ", ");
}

void add_settings(const toml::table& table, const std::string& prefix, Settings& out) {
  for (const auto& [key, value] : table) {
    const std::string path = prefix + std::string(key.str());
    const toml::array* array = value.as_array();
    if (const toml::table* inner = value.as_table()) {
      add_settings(*inner, path + ".", out);
    } else if (array != nullptr && array->is_homogeneous(toml::node_type::table)) {
      for (const toml::node& row : *array) out.lists[path].push_back(one_line(*row.as_table()));
    } else {
      out.values[path] = value_text(value);
    }
  }
}

std::optional<Settings> settings_of(std::string_view text) {
  try {
    Settings out;
    add_settings(parse_toml(text, "policy"), "", out);
    out.values.erase("name");
    return out;
  } catch (const InputError&) {
    return std::nullopt;
  }
}

// Lists the rows on either side that are not in the longest common subsequence, with their places.
void compare_lists(const std::string& path, const std::vector<std::string>& before,
                   const std::vector<std::string>& after, PolicyChange& out) {
  Pairing rows(before.size(), after.size());
  rows.pair_in_order(rows.free_before(), rows.free_after(),
                     [&](size_t i, size_t j) { return before[i] == after[j]; });
  const auto line = [&](const std::vector<std::string>& list, size_t at) {
    return fmt::format("{} {}: {}", path, at + 1, list[at]);
  };
  for (const size_t i : rows.free_before()) out.before.push_back(line(before, i));
  for (const size_t j : rows.free_after()) out.after.push_back(line(after, j));
}

}  // namespace

PolicyChange policy_change(std::string_view before, std::string_view after) {
  if (before == after) return {};
  const std::optional<Settings> old = settings_of(before), now = settings_of(after);
  if (!old || !now) return {{std::string(before)}, {std::string(after)}};
  PolicyChange out;
  const auto add_missing = [](const Settings& from, const Settings& other,
                              std::vector<std::string>& lines) {
    for (const auto& [path, value] : from.values) {
      const auto found = other.values.find(path);
      if (found != other.values.end() && found->second == value) continue;
      lines.push_back(path + " = " + value);
    }
  };
  add_missing(*old, *now, out.before);
  add_missing(*now, *old, out.after);
  std::map<std::string, std::vector<std::string>> lists = old->lists;
  lists.insert(now->lists.begin(), now->lists.end());
  const auto list_of = [](const Settings& settings, const std::string& path) {
    const auto found = settings.lists.find(path);
    return found == settings.lists.end() ? std::vector<std::string>() : found->second;
  };
  for (const auto& [path, rows] : lists) {
    compare_lists(path, list_of(*old, path), list_of(*now, path), out);
  }
  return out;
}

}  // namespace lockstep
