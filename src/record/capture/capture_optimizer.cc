// Reads a capture's optimizer: maps PyTorch's class and names to a row of the optimizer table.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/record/capture/capture_contents.h"
#include "src/update/optimizers.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// Null: the updates of this class are recorded. Decoupled decay is a number of the group, not a
// property of the class. `module`: "torch.optim.adamw"; files without one are of torch.
const Optimizer* row_of_class(const std::string& name, const std::string& module) {
  const std::string package = module.empty() ? "torch" : module.substr(0, module.find('.'));
  const auto rows = optimizers();
  const auto found = std::ranges::find_if(rows, [&](const Optimizer& row) {
    return row.captured_class == name && row.captured_package == package;
  });
  return name.empty() || found == rows.end() ? nullptr : &*found;
}

// Numbers that PyTorch keeps as one list.
struct ListRow {
  const char* name;
  std::vector<const char*> numbers;
};
const std::vector<ListRow>& list_rows() {
  static const std::vector<ListRow> rows = {{"betas", {"beta1", "beta2"}},
                                            {"eps", {"eps1", "eps2"}},
                                            {"ns_coefficients", {"ns_a", "ns_b", "ns_c"}}};
  return rows;
}
// A choice by name that is a flag here.
constexpr const char *kMuonChoice = "adjust_lr_fn", *kMuonFlag = "match_rms_adamw";

double number_in(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  return value.is_number() ? value.get<double>() : std::nan("");
}

// One group's numbers. Names that the row lacks (foreach, fused, initial_lr) change no result. The
// row's defaults replace missing ones: torch's AdamW in old versions has no decoupled_weight_decay.
HyperValues numbers_of_group(const Json& group, const Optimizer& row, const StoredFields& at) {
  HyperValues values;
  if (!group.is_object()) {
    at.problem("attribute hyper must be a list of objects");
    return values;
  }
  Json flat = group;
  for (const ListRow& list : list_rows()) {
    const auto found = group.find(list.name);
    const bool is_one = std::ranges::count(row.parameters, list.name, &HyperParameter::name) != 0;
    if (found == group.end() || is_one) continue;
    if (found->is_array() && found->size() == list.numbers.size()) {
      for (size_t i = 0; i < list.numbers.size(); ++i) flat[list.numbers[i]] = (*found)[i];
    } else {
      at.problem(fmt::format("hyper: {} is {}, must be {} numbers", list.name, found->dump(),
                             list.numbers.size()));
    }
  }
  if (const auto choice = group.find(kMuonChoice); choice != group.end()) {
    flat[kMuonFlag] = *choice == kMuonFlag;
  }
  for (const HyperParameter& p : row.parameters) {
    const auto found = flat.find(std::string(p.name));
    if (found == flat.end()) continue;
    if (found->is_null()) {  // None: the optimizer's own choice
      values[std::string(p.name)] = p.initial;
      continue;
    }
    const double value = number_in(*found);
    if (std::isnan(value)) {
      at.problem(fmt::format("hyper: {} is {}, must be a number", p.name, found->dump()));
    }
    values[std::string(p.name)] = value;
  }
  if (!values.contains("lr")) at.problem("hyper: lr is missing");
  return values;
}

// Whether a group maximizes, which is not modelled.
bool maximizes(const Json& hyper) {
  return hyper.is_array() && std::ranges::any_of(hyper, [](const Json& group) {
           return group.is_object() && group.contains("maximize") &&
                  number_in(group["maximize"]) != 0;
         });
}

}  // namespace

std::vector<HyperValues> read_hyper(const StoredFields& at, const Capture& capture) {
  std::vector<HyperValues> all;
  if (capture.optimizer.empty()) return all;
  if (records_updates(capture)) return std::vector<HyperValues>(capture.groups.size());
  const Json json = at.json("hyper");
  if (json.is_discarded()) return all;
  if (!json.is_array() || json.size() != capture.groups.size()) {
    at.problem(fmt::format("attribute hyper must be a list of {} groups", capture.groups.size()));
    return all;
  }
  const Optimizer& row = find_optimizer(capture.optimizer);
  for (const Json& group : json) all.push_back(numbers_of_group(group, row, at));
  return all;
}

void read_optimizer(const StoredFields& root, Capture& capture) {
  const StoredFields optimizer = root.child("optimizer");
  capture.optimizer_class = optimizer.text("class");
  capture.master_weights = optimizer.flag("master_weights", false, /*required=*/false);
  capture.state_codes = optimizer.text("state_codes", /*required=*/false);
  const Optimizer* row =
      row_of_class(capture.optimizer_class, optimizer.text("module", /*required=*/false));
  const std::string mode = root.text("replay_mode", /*required=*/false);
  const bool is_recorded = mode == "recorded";
  if (is_recorded) {
    capture.optimizer = recorded_updates().name;
  } else if (mode != "gradients-only" && row != nullptr) {
    capture.optimizer = row->name;
  }
  const StoredFields groups = optimizer.child("groups");
  const size_t count = groups.children().size();
  if (groups.there() && count == 0) groups.problem("has no group");
  std::map<std::string, size_t> group_of;
  for (size_t g = 0; g < count; ++g) {
    const StoredFields group = groups.child(std::to_string(g));
    std::vector<std::string> names = group.texts("params");
    for (const std::string& name : names) {
      // Parameters that the graph does not read have no gradient and need no value.
      const auto [first, is_new] = group_of.emplace(name, g);
      if (is_new) continue;
      group.problem(fmt::format(
          "parameter '{}' is {}", name,
          first->second == g ? "named twice" : fmt::format("also in group {}", first->second)));
    }
    capture.groups.push_back(std::move(names));
    if (capture.optimizer.empty() || is_recorded || !group.there()) continue;
    if (maximizes(Json::array({group.json("hyper")}))) {
      capture.optimizer.clear();
      capture.optimizer_class += " with maximize";
    }
  }
  const StoredFields state = optimizer.optional("state");
  if (!capture.optimizer.empty() && state.there()) read_states(state, capture, capture.start);
}

void read_states(const StoredFields& at, const Capture& capture, CapturedState& state) {
  const Optimizer& row = find_optimizer(capture.optimizer);
  for (const Parameter& p : capture.graphs.front().parameters) {
    const StoredFields of = at.optional(p.name);
    if (!of.there()) continue;
    bool has_states = false;
    for (const StateRow& known : row.all_states) {
      if (!of.has(known.name)) continue;
      has_states = true;
      const OptimizerState kept{known.name, 0, known.divides, known.extent};
      const TensorType type{kept.shape_for(p.type.shape), p.type.element};
      state.optimizer[p.name].emplace(known.name,
                                      of.child(known.name).take_tensor(type, Container::kF32));
    }
    if (of.has("step")) {
      const std::vector<double> step = of.child("step").numbers();
      constexpr double kMost = 1e15;
      if (step.size() != 1 || !(step[0] >= 0 && step[0] <= kMost)) {
        of.problem("step must be one number of steps");
      } else {
        state.steps[p.name] = static_cast<int64_t>(step[0]);
      }
    } else if (!row.counts_steps) {
      state.steps[p.name] = has_states ? 1 : 0;
    }
  }
}

}  // namespace lockstep
