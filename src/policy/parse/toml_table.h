// Reads a TOML table so that nothing in it is ignored silently.
// Typed getters report problems with their line numbers; finish() reports every key that no getter
// read. Knows nothing of policies.
#pragma once

#include <toml++/toml.h>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/core/error.h"

namespace lockstep {

class TomlTable {
 public:
  // `where` is the table's name in messages: "[storage]", "" for the top level.
  TomlTable(const toml::table& table, std::string where, ProblemList& problems)
      : table_(&table), where_(std::move(where)), problems_(&problems) {}

  // nullopt when the key is absent, or present with another type (then a problem is added).
  std::optional<std::string> text(std::string_view key);
  std::optional<double> number(std::string_view key);  // an integer is a number, too
  std::optional<int64_t> integer(std::string_view key);
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::chrono::year_month_day> date(std::string_view key);
  struct Item {
    std::string text;
    int line;
  };
  std::vector<Item> texts(std::string_view key);         // an array of strings
  std::optional<TomlTable> table(std::string_view key);  // [key]
  std::vector<TomlTable> tables(std::string_view key);   // [[key]]

  bool has(std::string_view key) const { return table_->contains(key); }
  int line() const { return static_cast<int>(table_->source().begin.line); }
  // Adds "line 3: [storage] weight WHAT; HINT".
  void problem(std::string_view key, const std::string& what, const std::string& hint = "");
  void problem_at(int line, std::string_view key, const std::string& what,
                  const std::string& hint = "");
  // Whether further problems are only counted, so that their hints need not be found.
  bool has_many_problems() const { return problems_->count() >= ProblemList::kMostKept; }
  // Adds "line 3: [storage] weight: " and the error of a look-up of the key's value.
  void problem(std::string_view key, const InputError& error, const std::string& hint = "");
  // Call last: every key that no getter read is a problem.
  void finish();

 private:
  int line_of(std::string_view key) const;
  const toml::node* find(std::string_view key);
  void wrong_type(std::string_view key, const toml::node& node, std::string_view wanted);

  const toml::table* table_;
  std::string where_;
  ProblemList* problems_;
  std::vector<std::string> known_;
};

}  // namespace lockstep
