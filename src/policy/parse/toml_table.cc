// The getters. Each remembers its key, so that finish() can report the others.
#include "src/policy/parse/toml_table.h"

#include <algorithm>
#include <sstream>

#include "src/core/text.h"

namespace lockstep {
namespace {

std::string type_name(const toml::node& node) {
  std::ostringstream text;
  text << node.type();
  return text.str();
}

}  // namespace

const toml::node* TomlTable::find(std::string_view key) {
  known_.emplace_back(key);
  return table_->get(key);
}

void TomlTable::wrong_type(std::string_view key, const toml::node& node, std::string_view wanted) {
  problem(key, "is of type " + type_name(node) + ", must be " + std::string(wanted));
}

std::optional<std::string> TomlTable::text(std::string_view key) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (const auto* value = node->as_string()) return value->get();
  wrong_type(key, *node, "a string");
  return std::nullopt;
}

std::optional<double> TomlTable::number(std::string_view key) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (const auto* value = node->as_floating_point()) return value->get();
  if (const auto* value = node->as_integer()) return static_cast<double>(value->get());
  wrong_type(key, *node, "a number");
  return std::nullopt;
}

std::optional<int64_t> TomlTable::integer(std::string_view key) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (const auto* value = node->as_integer()) return value->get();
  wrong_type(key, *node, "an integer");
  return std::nullopt;
}

std::optional<bool> TomlTable::boolean(std::string_view key) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (const auto* value = node->as_boolean()) return value->get();
  wrong_type(key, *node, "true or false");
  return std::nullopt;
}

std::optional<std::chrono::year_month_day> TomlTable::date(std::string_view key) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (const auto* value = node->as_date()) {
    return std::chrono::year(value->get().year) / value->get().month / value->get().day;
  }
  wrong_type(key, *node, "a date, such as 2027-01-31 without quotes");
  return std::nullopt;
}

std::vector<TomlTable::Item> TomlTable::texts(std::string_view key) {
  std::vector<Item> items;
  const toml::node* node = find(key);
  if (node == nullptr) return items;
  const toml::array* array = node->as_array();
  if (array == nullptr) {
    wrong_type(key, *node, "an array of strings");
    return items;
  }
  for (const toml::node& element : *array) {
    const int line = static_cast<int>(element.source().begin.line);
    if (const auto* value = element.as_string()) {
      items.push_back({value->get(), line});
    } else {
      problem_at(line, key,
                 "has an element of type " + type_name(element) + ", all must be strings");
    }
  }
  return items;
}

std::optional<TomlTable> TomlTable::table(std::string_view key) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (const toml::table* value = node->as_table()) {
    return TomlTable(*value, "[" + std::string(key) + "]", *problems_);
  }
  wrong_type(key, *node, "a table, written [" + std::string(key) + "]");
  return std::nullopt;
}

std::vector<TomlTable> TomlTable::tables(std::string_view key) {
  std::vector<TomlTable> all;
  const toml::node* node = find(key);
  if (node == nullptr) return all;
  const toml::array* array = node->as_array();
  const bool tables_only =
      array != nullptr &&
      std::all_of(array->begin(), array->end(), [](const toml::node& n) { return n.is_table(); });
  if (!tables_only) {
    wrong_type(key, *node, "an array of tables, each written [[" + std::string(key) + "]]");
    return all;
  }
  for (const toml::node& element : *array) {
    all.emplace_back(*element.as_table(), "[[" + std::string(key) + "]]", *problems_);
  }
  return all;
}

int TomlTable::line_of(std::string_view key) const {
  const toml::node* node = table_->get(key);
  return node != nullptr ? static_cast<int>(node->source().begin.line) : line();
}

void TomlTable::problem(std::string_view key, const std::string& what, const std::string& hint) {
  problem_at(line_of(key), key, what, hint);
}

void TomlTable::problem(std::string_view key, const InputError& error, const std::string& hint) {
  const std::string& what = error.problems().front();
  // Most look-ups name the value they did not find; for the others it is added here.
  const std::string value = printable(table_->get(key)->value_or(std::string()));
  const bool names_value = what.find("'" + value + "'") != std::string::npos;
  problem_at(line_of(key), std::string(key) + (names_value ? ":" : " = '" + value + "':"), what,
             hint);
}

void TomlTable::problem_at(int line, std::string_view key, const std::string& what,
                           const std::string& hint) {
  std::string text = "line " + std::to_string(line) + ": ";
  if (!where_.empty()) text += where_ + " ";
  if (!key.empty()) text += std::string(key) + " ";
  problems_->add(text + what, hint);
}

void TomlTable::finish() {
  for (const auto& [key, node] : *table_) {
    const std::string name(key.str());
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    problem_at(static_cast<int>(key.source().begin.line), name, "is not a key of this table",
               did_you_mean(name, known_));
  }
}

}  // namespace lockstep
