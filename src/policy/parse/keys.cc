// Names are looked up in their own tables, whose errors hint at the nearest name.
#include "src/policy/parse/keys.h"

#include <algorithm>

#include "src/core/text.h"
#include "src/graph/composed_ops.h"

namespace lockstep {
namespace {

// Names allowed in a policy file's lists: forward ops, and the other system's names for them.
std::vector<std::string> listable_ops(OpNames system) {
  std::vector<std::string> names = listable_op_names();
  for (const OpName& row : foreign_op_names(system)) names.emplace_back(row.foreign);
  return names;
}

// Lanes hold their values in FP32 containers, which cannot hold a wider format exactly.
void set_format(TomlTable& table, std::string_view key, const std::string& name,
                const Format*& format, std::vector<std::string>& notes) {
  const std::string hint = format_hint(name);
  try {
    const Format& found = find_format(name);
    if (!contains(find_format("fp32"), found)) {
      table.problem(key, "= '" + name + "': must fit in fp32, the lanes' container",
                    "for FP64, run the lane named fp64");
      return;
    }
    format = &found;
    if (!hint.empty()) notes.push_back(std::string(key) + " = '" + name + "': " + hint);
  } catch (const InputError& error) {
    table.problem(key, error, hint);
  }
}

}  // namespace

void read_format(TomlTable& table, std::string_view key, const Format*& format,
                 std::vector<std::string>& notes) {
  if (const auto name = table.text(key)) set_format(table, key, *name, format, notes);
}

void read_format_or_none(TomlTable& table, std::string_view key, const Format*& format,
                         std::vector<std::string>& notes) {
  const auto name = table.text(key);
  if (name == "none") {
    format = nullptr;
  } else if (name) {
    set_format(table, key, *name, format, notes);
  }
}

void read_accumulator(TomlTable& table, const Accumulator*& accumulator) {
  read_name(
      table, "accumulator", [](const std::string& name) { return &find_accumulator(name); },
      accumulator);
}

void read_ops(TomlTable& table, std::string_view key, std::vector<std::string>& ops) {
  if (!table.has(key)) return;
  ops.clear();
  for (const auto& item : table.texts(key)) {
    if (!check_listed_op(table, key, item, OpNames::kTorch)) continue;
    for (std::string& op : lockstep_op_names(OpNames::kTorch, item.text)) {
      ops.push_back(std::move(op));
    }
  }
}

bool check_listed_op(TomlTable& table, std::string_view list, const TomlTable::Item& item,
                     OpNames system) {
  const std::vector<std::string> names = listable_ops(system);
  const std::string op = lockstep_op_names(system, item.text).front();
  if (std::find(names.begin(), names.end(), op) != names.end()) return true;
  table.problem_at(item.line, list, "has '" + item.text + "': no such forward op",
                   table.has_many_problems() ? "" : did_you_mean(item.text, names));
  return false;
}

}  // namespace lockstep
