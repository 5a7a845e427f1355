// Reads one key of a policy file.
// Setters for the kinds of value that several tables hold. An absent key changes nothing; a
// wrong one adds a problem to its table. Knows nothing of what the keys mean.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/format/format.h"
#include "emulation/format/rounding.h"
#include "src/core/error.h"
#include "src/policy/foreign_op_names.h"
#include "src/policy/parse/toml_table.h"

namespace lockstep {

// `find` is find_rounding, find_amax_choice, ...: its error becomes a problem with a line.
template <typename Find, typename Value>
void read_name(TomlTable& table, std::string_view key, Find find, Value& value) {
  const auto name = table.text(key);
  if (!name) return;
  try {
    value = find(*name);
  } catch (const InputError& error) {
    table.problem(key, error);
  }
}

// For read_name, one of two words: returns whether it is the second.
inline auto second_of(std::string first, std::string second) {
  return [first, second](const std::string& name) {
    if (name == first || name == second) return name == second;
    throw InputError("'" + name + "': must be " + first + " or " + second);
  };
}

// A format that lanes can hold. `notes`: the policy's; receives the format's hint, if it has one.
void read_format(TomlTable& table, std::string_view key, const Format*& format,
                 std::vector<std::string>& notes);
// The same; "none" switches off the extended policy's format.
void read_format_or_none(TomlTable& table, std::string_view key, const Format*& format,
                         std::vector<std::string>& notes);

// The key "accumulator".
void read_accumulator(TomlTable& table, const Accumulator*& accumulator);

// A list of forward ops by torch's names or Lockstep's. An empty list undoes the extended policy's.
void read_ops(TomlTable& table, std::string_view key, std::vector<std::string>& ops);

// Whether a list's item is a forward op in that system's names or Lockstep's. If not: a problem.
bool check_listed_op(TomlTable& table, std::string_view list, const TomlTable::Item& item,
                     OpNames system);

}  // namespace lockstep
