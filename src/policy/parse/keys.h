// How is one key of a policy file read?
// Setters for the kinds of value that several tables hold. An absent key leaves what was there, a
// wrong one is a problem of its table. Knows nothing of what the keys mean.
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

// One of two words, for read_name: whether it is the second.
inline auto second_of(std::string first, std::string second) {
  return [first, second](const std::string& name) {
    if (name == first || name == second) return name == second;
    throw InputError("'" + name + "': must be " + first + " or " + second);
  };
}

// A format that lanes can hold. `notes`: of the policy, gets what is worth knowing of the format.
void read_format(TomlTable& table, std::string_view key, const Format*& format,
                 std::vector<std::string>& notes);
// The same, where "none" switches off what the extended policy sets.
void read_format_or_none(TomlTable& table, std::string_view key, const Format*& format,
                         std::vector<std::string>& notes);

// The key "accumulator".
void read_accumulator(TomlTable& table, const Accumulator*& accumulator);

// A list of forward ops by torch's names or Lockstep's. An empty list undoes what the extended
// policy says.
void read_ops(TomlTable& table, std::string_view key, std::vector<std::string>& ops);

// Whether a list's item is a forward op in that system's names or Lockstep's; if not: a problem.
bool check_listed_op(TomlTable& table, std::string_view list, const TomlTable::Item& item,
                     OpNames system);

}  // namespace lockstep
