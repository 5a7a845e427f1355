// The ops' rows hold the names that other systems use. This file inverts them.
#include "src/policy/foreign_op_names.h"

#include <algorithm>

#include "src/core/find_row.h"
#include "src/graph/composed_ops.h"

namespace lockstep {
namespace {

struct System {
  std::string_view name;
  OpNames names;
  std::string_view ForeignNames::*of_row;
  bool cuts_overloads;  // torch's ".dim_IntList" never changes the op
};
constexpr System kSystems[] = {
    {.name = "torch",
     .names = OpNames::kTorch,
     .of_row = &ForeignNames::torch,
     .cuts_overloads = true},
    {.name = "mxnet",
     .names = OpNames::kMxnet,
     .of_row = &ForeignNames::mxnet,
     .cuts_overloads = false},
};

const System& system_of(OpNames names) {
  return kSystems[static_cast<size_t>(names)];
}

void add_names(std::string_view foreign, std::string_view lockstep, std::vector<OpName>& names) {
  while (!foreign.empty()) {
    const size_t end = std::min(foreign.find(' '), foreign.size());
    names.push_back({foreign.substr(0, end), lockstep});
    foreign.remove_prefix(std::min(end + 1, foreign.size()));
  }
}

std::vector<OpName> names_of(const System& system) {
  std::vector<OpName> names;
  for (const OpDef& op : ops()) add_names(op.foreign_names.*system.of_row, op.name, names);
  for (const ComposedOp& op : composed_ops()) {
    add_names(op.foreign_names.*system.of_row, op.name, names);
  }
  return names;
}

}  // namespace

OpNames find_op_names(const std::string& system) {
  return find_row("op names of", system, kSystems).names;
}

std::span<const OpName> foreign_op_names(OpNames system) {
  static const std::vector<OpName> all[] = {names_of(system_of(OpNames::kTorch)),
                                            names_of(system_of(OpNames::kMxnet))};
  return all[static_cast<size_t>(system)];
}

std::vector<std::string> lockstep_op_names(OpNames system, std::string_view name) {
  const bool cuts = system_of(system).cuts_overloads;
  const std::string_view base = cuts ? name.substr(0, name.find('.')) : name;
  std::vector<std::string> names;
  for (const OpName& row : foreign_op_names(system)) {
    if (row.foreign == base) names.emplace_back(row.lockstep);
  }
  if (names.empty()) names.emplace_back(base);
  return names;
}

}  // namespace lockstep
