// Op lists and the loss scale; rules by layer are in pytorch_layers.cc, scaled operands in
// pytorch_scaling.cc, what torch cannot do in pytorch_unsaid.cc.
#include "reports/pytorch/pytorch_recipe.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <set>

#include "reports/pytorch/pytorch_layers.h"
#include "reports/pytorch/pytorch_scaling.h"
#include "reports/pytorch/pytorch_sharded.h"
#include "reports/pytorch/pytorch_unsaid.h"
#include "src/graph/composed_ops.h"
#include "src/graph/op.h"
#include "src/policy/find_policy.h"

namespace lockstep {
namespace {

std::set<std::string> listed_names(const Graph& graph) {
  std::set<std::string> names;
  for (const Node& node : graph.nodes) {
    if (!node.is_backward()) names.insert(listed_name(node, find_op(node.op)));
  }
  return names;
}

void add_op_lists(const Policy& policy, const Policy& torch, const std::set<std::string>& ops,
                  std::vector<std::string>& unsaid) {
  for (const std::string& op : ops) {
    const CastClass wanted = policy.class_of(op), there = torch.class_of(op);
    if (wanted == there) continue;
    unsaid.push_back(
        fmt::format("{} is on the list {} of the policy and on {} of {}: torch's lists "
                    "cannot be changed.",
                    op, to_string(wanted), to_string(there), torch.label()));
  }
}

std::optional<GradScalerArguments> grad_scaler(const LossScaleSpec& spec) {
  const LossScaler& scaler = find_loss_scaler(spec.kind);
  if (!scaler.scales) return std::nullopt;
  const LossScaleSpec torch = find_loss_scaler(kGradScaler).defaults;
  if (!scaler.knows("growth_interval")) {
    // The largest factor below 1 that GradScaler accepts. FP32 scale * (1 - 2^-53), formed in
    // double and rounded to FP32, is the scale again.
    return GradScalerArguments{.init_scale = spec.init_scale,
                               .growth_factor = torch.growth_factor,
                               .backoff_factor = std::nextafter(1.0, 0.0),
                               .growth_interval = std::numeric_limits<int32_t>::max(),
                               .is_static = true};
  }
  const double growth = scaler.knows("growth_factor") ? spec.growth_factor : torch.growth_factor;
  // Kinds without a factor of their own divide by the growth factor.
  const double backoff = scaler.knows("backoff_factor") ? spec.backoff_factor : 1 / growth;
  return GradScalerArguments{.init_scale = spec.init_scale,
                             .growth_factor = growth,
                             .backoff_factor = backoff,
                             .growth_interval = spec.growth_interval,
                             .is_static = false};
}

}  // namespace

PytorchRecipe pytorch_recipe(const Policy& policy, const Graph& graph, const PythonTarget& target,
                             std::vector<std::string>& unsaid) {
  PytorchRecipe recipe;
  recipe.model = graph.name;
  const std::set<std::string> ops = listed_names(graph);
  const bool has_autocast = policy.low != nullptr;
  const Policy torch =
      has_autocast ? nearest_torch_preset(policy, *policy.low, ops) : find_policy(kReferenceLane);
  if (has_autocast && torch.low == nullptr) {
    unsaid.push_back(
        fmt::format("Autocast to {}: torch.autocast has fp16 and bf16 only.", policy.low->name));
  } else if (has_autocast) {
    recipe.format = policy.low->name;
    recipe.weight_cache = policy.weight_cache;
    recipe.op_lists = torch.label();
    add_op_lists(policy, torch, ops, unsaid);
  }
  recipe.tf32 = tf32_switches(policy, graph, unsaid);
  add_layers(policy, graph, recipe, unsaid);
  if (target.is_sharded) recipe.sharded = sharded_precision(policy, graph, unsaid);
  recipe.scaled = scaled_linears(policy, graph, target.library, unsaid);
  Policy rest = target.is_sharded ? without_sharded_words(policy, torch) : policy;
  if (recipe.scaled && recipe.scaled->call.says_sums) {
    rest.gemm_accumulator = torch.gemm_accumulator;
    for (ProductScaling& product : rest.scaling.products) product.accumulator = nullptr;
  }
  add_unsaid_numerics(rest, torch, unsaid);
  recipe.scaler = grad_scaler(policy.loss_scale);
  add_unsaid_loss_scale(policy, unsaid);
  return recipe;
}

}  // namespace lockstep
