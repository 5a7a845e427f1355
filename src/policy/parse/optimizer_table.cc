// Reads how gradients are combined between workers and used in the update of the weights.
#include "src/policy/parse/optimizer_table.h"

#include <fmt/format.h>

#include "src/core/find_row.h"
#include "src/core/text.h"
#include "src/policy/parse/keys.h"

namespace lockstep {
namespace {

struct StepsName {
  std::string_view name;
  OptimizerSteps steps;
};
constexpr StepsName kSteps[] = {
    {"elementary", OptimizerSteps::kElementary},
    {"torch", OptimizerSteps::kTorch},
    {"torch_cpu", OptimizerSteps::kTorchCpu},
};

struct UpdateRoundingName {
  std::string_view name;
  UpdateRounding rounding;
};
constexpr UpdateRoundingName kUpdateRoundings[] = {
    {"nearest_even", UpdateRounding::kNearestEven},
    {"stochastic", UpdateRounding::kStochastic},
    {"kahan", UpdateRounding::kKahan},
};

struct OrderName {
  std::string_view name;
  AllReduce::Order order;
};
constexpr OrderName kOrders[] = {
    {"ring", AllReduce::Order::kRing},
    {"tree", AllReduce::Order::kTree},
    {"all_gather", AllReduce::Order::kAllGather},
};

struct DivideName {
  std::string_view name;
  AllReduce::Divide divide;
};
constexpr DivideName kDivides[] = {
    {"before", AllReduce::Divide::kBefore},
    {"after", AllReduce::Divide::kAfter},
    {"both", AllReduce::Divide::kBoth},
};

OptimizerSteps find_steps(const std::string& name) {
  return find_row("steps", name, kSteps).steps;
}

UpdateRounding find_update_rounding(const std::string& name) {
  return find_row("update_rounding", name, kUpdateRoundings).rounding;
}

void read_workers(TomlTable& table, AllReduce& reduce) {
  const auto workers = table.integer("workers");
  if (!workers) return;
  if (*workers < 1) table.problem("workers", fmt::format("= {}: must be at least 1", *workers));
  reduce.workers = *workers;
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
  read_name(
      table, "state_codes", [](const std::string& name) { return &find_state_codes(name); },
      policy.state_codes);
  if (table.has("state_codes") && !policy.optimizer_state->is_fp32()) {
    table.problem("state_codes",
                  "= '...': the state between encodings is " + policy.optimizer_state->name,
                  "set state = \"fp32\"");
  }
  read_name(table, "steps", find_steps, policy.optimizer_steps);
  read_name(table, "update_rounding", find_update_rounding, policy.update_rounding);
  table.finish();
  check_masters(table, policy);
}

void read_all_reduce(TomlTable& table, Policy& policy) {
  AllReduce& reduce = policy.all_reduce;
  read_format_or_none(table, "format", reduce.format, policy.notes);
  read_name(
      table, "order",
      [](const std::string& name) { return find_row("order", name, kOrders).order; }, reduce.order);
  read_name(
      table, "divide",
      [](const std::string& name) { return find_row("divide", name, kDivides).divide; },
      reduce.divide);
  read_format_or_none(table, "result", reduce.result, policy.notes);
  read_workers(table, reduce);
  table.finish();
}

void read_accumulate(TomlTable& table, Policy& policy) {
  read_format_or_none(table, "format", policy.gradient_sum, policy.notes);
  table.finish();
}

}  // namespace lockstep
