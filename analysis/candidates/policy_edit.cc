// See policy_edit.h.
#include "analysis/candidates/policy_edit.h"

#include <array>

#include "src/policy/loss_scale.h"
#include "src/policy/parse/toml_text.h"

namespace lockstep {
namespace {

// Keys of a table with `kind` that another kind keeps.
struct KeptKeys {
  std::string_view table;
  std::array<std::string_view, 4> keys;
};
constexpr KeptKeys kKept[] = {
    {"loss_scale", {"clip", "skip", "per_loss", ""}},
    {"scaling", {"ops", "operand", "grad_operand", ""}},
};

void begin_afresh(std::string_view name, toml::table& table) {
  for (const KeptKeys& row : kKept) {
    if (row.table != name) continue;
    toml::table kept;
    for (const std::string_view key : row.keys) {
      if (const toml::node* node = table.get(key)) kept.insert(key, *node);
    }
    table = kept;
  }
}

// A kind without a scale takes no other key.
void drop_use_without_scale(toml::table& table) {
  const std::string kind = table["kind"].value_or(std::string());
  if (!kind.empty() && !find_loss_scaler(kind).scales) table = toml::table{{"kind", kind}};
}

void merge(toml::table& into, const toml::table& edit) {
  for (const auto& [key, node] : edit) {
    const std::string_view name = key.str();
    if (const toml::array* added = node.as_array(); added != nullptr && name == "rule") {
      if (!into.contains(name)) into.insert(name, toml::array{});
      for (const toml::node& rule : *added) into[name].as_array()->push_back(rule);
    } else if (const toml::table* table = node.as_table()) {
      if (!into.contains(name)) into.insert(name, toml::table{});
      toml::table& mine = *into[name].as_table();
      if (table->contains("kind")) begin_afresh(name, mine);
      for (const auto& [k, value] : *table) mine.insert_or_assign(k, value);
      if (name == "loss_scale") drop_use_without_scale(mine);
    } else {
      into.insert_or_assign(key, node);
    }
  }
}

}  // namespace

std::string edited_policy(std::string_view base, std::string_view name,
                          std::span<const RemedyEdit> edits) {
  toml::table policy = parse_toml(base, std::string(name));
  for (const std::string_view own : {"aliases", "help", "source", "version"}) policy.erase(own);
  policy.insert_or_assign("name", name);
  for (const RemedyEdit& edit : edits) merge(policy, parse_toml(edit.toml, edit.words));
  return toml_text(policy);
}

std::string added_lines(std::span<const RemedyEdit> edits) {
  toml::table lines;
  for (const RemedyEdit& edit : edits) merge(lines, parse_toml(edit.toml, edit.words));
  return lines.empty() ? "" : toml_text(lines);
}

}  // namespace lockstep
