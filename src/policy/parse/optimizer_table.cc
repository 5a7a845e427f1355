// Reads how gradients are combined between workers and used in the update of the weights.
#include "src/policy/parse/optimizer_table.h"

#include "src/core/text.h"
#include "src/policy/parse/keys.h"

namespace lockstep {
namespace {

OptimizerSteps find_steps(const std::string& name) {
  if (name == "elementary") return OptimizerSteps::kElementary;
  if (name == "torch") return OptimizerSteps::kTorch;
  if (name == "torch_cpu") return OptimizerSteps::kTorchCpu;
  throw InputError("steps '" + name + "': unknown",
                   did_you_mean(name, {"elementary", "torch", "torch_cpu"}));
}

UpdateRounding find_update_rounding(const std::string& name) {
  if (name == "nearest_even") return UpdateRounding::kNearestEven;
  if (name == "stochastic") return UpdateRounding::kStochastic;
  if (name == "kahan") return UpdateRounding::kKahan;
  throw InputError("update_rounding '" + name + "': unknown",
                   did_you_mean(name, {"nearest_even", "stochastic", "kahan"}));
}

void check_masters(TomlTable& table, const Policy& policy) {
  if (table.has("master") && !policy.master_weights) {
    table.problem("master", "has no effect: master_weights is false",
                  "set master_weights = true, or remove the key");
  }
  if (!policy.master_weights) return;
  if (policy.weight->is_fp32()) {
    table.problem("master_weights", "= true: weights are fp32 already and need no masters",
                  "set [storage] weight to a narrower format, or master_weights = false");
  } else if (!contains(*policy.master, *policy.weight)) {
    table.problem("master",
                  "= '" + policy.master->name + "': must hold every " + policy.weight->name +
                      " weight exactly",
                  "fp32 holds them all");
  }
}

}  // namespace

void read_optimizer(TomlTable& table, Policy& policy) {
  policy.master_weights = table.boolean("master_weights").value_or(policy.master_weights);
  read_format(table, "master", policy.master, policy.notes);
  read_format(table, "arithmetic", policy.optimizer_arithmetic, policy.notes);
  read_format(table, "state", policy.optimizer_state, policy.notes);
  read_name(table, "steps", find_steps, policy.optimizer_steps);
  read_name(table, "update_rounding", find_update_rounding, policy.update_rounding);
  table.finish();
  check_masters(table, policy);
}

void read_all_reduce(TomlTable& table, Policy& policy) {
  AllReduce& reduce = policy.all_reduce;
  read_format_or_none(table, "format", reduce.format, policy.notes);
  bool is_tree = reduce.order == AllReduce::Order::kTree;
  read_name(table, "order", second_of("ring", "tree"), is_tree);
  reduce.order = is_tree ? AllReduce::Order::kTree : AllReduce::Order::kRing;
  bool divides_after = !reduce.divides_before;
  read_name(table, "divide", second_of("before", "after"), divides_after);
  reduce.divides_before = !divides_after;
  table.finish();
}

}  // namespace lockstep
