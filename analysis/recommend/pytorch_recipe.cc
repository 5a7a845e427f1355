// Op lists, rules by layer, and the loss scale; the rest is in pytorch_unsaid.cc.
#include "analysis/recommend/pytorch_recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include "analysis/recommend/pytorch_unsaid.h"
#include "src/core/text.h"
#include "src/graph/composed_ops.h"
#include "src/graph/op.h"
#include "src/policy/find_policy.h"

namespace lockstep {
namespace {

// The presets of torch.autocast are named after it: torch-autocast-fp16, torch-autocast-bf16-cpu.
constexpr std::string_view kTorchPresets = "torch-autocast-";

std::string listed_name_of(const Node& node) {
  return listed_name(node, find_op(node.op));
}

std::set<std::string> listed_names(const Graph& graph) {
  std::set<std::string> names;
  for (const Node& node : graph.nodes) {
    if (!node.is_backward()) names.insert(listed_name_of(node));
  }
  return names;
}

// The preset of torch whose lists treat most of `ops` as the policy does; the one that the policy
// extends, or else the first, where several do. Of several versions the newest comes first.
Policy nearest_torch_preset(const Policy& policy, const std::set<std::string>& ops) {
  const Policy* nearest = nullptr;
  std::pair<long, bool> best;
  const std::span<const Policy> all = presets();
  for (size_t i = all.size(); i-- > 0;) {
    const Policy& preset = all[i];
    if (!preset.name.starts_with(kTorchPresets) || preset.low != policy.low) continue;
    const auto alike = std::ranges::count_if(
        ops, [&](const std::string& op) { return preset.class_of(op) == policy.class_of(op); });
    const bool is_own = preset.label() == policy.extends || preset.label() == policy.label();
    const std::pair<long, bool> rank{alike, is_own};
    if (nearest != nullptr && rank <= best) continue;
    nearest = &preset;
    best = rank;
  }
  return nearest != nullptr ? *nearest : find_policy(kReferenceLane);
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

// What the rules ask of the ops of one layer.
struct LayerRules {
  size_t fp32_count = 0;
  bool is_module = true;
  std::set<std::string> fp32_ops, other_ops, autocast_off_ops;
  std::map<std::string, std::set<std::string>> formats;  // other than FP32 -> its ops
};

bool matches(const PolicyRule& rule, const std::string& layer, const std::string& op) {
  return glob_match(rule.layer, layer) && glob_match(rule.op, op);
}

// The last rule that matches decides, as in lowering.
const Format* compute_format(const Policy& policy, const std::string& layer,
                             const std::string& op) {
  const Format* format = nullptr;
  for (const PolicyRule& rule : policy.rules) {
    if (rule.compute != nullptr && matches(rule, layer, op)) format = rule.compute;
  }
  return format;
}

void add_node(const Policy& policy, const std::string& layer, const Node& node, LayerRules& found) {
  const CastClass by_list = policy.class_of(listed_name_of(node));
  const Format* compute = compute_format(policy, layer, node.op);
  if (compute == nullptr) {
    if (by_list != CastClass::kFp32) found.other_ops.insert(node.op);
    const bool is_off = std::ranges::any_of(policy.rules, [&](const PolicyRule& rule) {
      return rule.autocast_off && matches(rule, layer, node.op);
    });
    if (is_off) found.autocast_off_ops.insert(node.op);
  } else if (compute->is_fp32()) {
    ++found.fp32_count;
    if (by_list != CastClass::kFp32) found.fp32_ops.insert(node.op);
  } else {
    found.other_ops.insert(node.op);
    const bool by_itself = compute == policy.low && by_list == CastClass::kLowPrecision;
    if (!by_itself) found.formats[compute->name].insert(node.op);
  }
}

std::string list(const std::set<std::string>& words) {
  return join({words.begin(), words.end()}, ", ");
}

void add_layer(const std::string& layer, const LayerRules& rules, PytorchRecipe& recipe,
               std::vector<std::string>& unsaid) {
  for (const auto& [format, ops] : rules.formats) {
    unsaid.push_back(
        fmt::format("{}: {} computed in {} whatever the lists say: an autocast region "
                    "has torch's lists.",
                    layer, list(ops), format));
  }
  if (!rules.autocast_off_ops.empty()) {
    unsaid.push_back(
        fmt::format("{}: {} outside of autocast, in the formats of the operands: write "
                    "torch.autocast(device, enabled=False) around them in the forward code.",
                    layer, list(rules.autocast_off_ops)));
  }
  if (rules.fp32_count == 0) return;
  if (rules.is_module && rules.other_ops.empty()) {
    recipe.fp32_layers.push_back(layer);
  } else if (!rules.fp32_ops.empty()) {
    unsaid.push_back(fmt::format(
        "{}: {} in FP32, {}: write torch.autocast(device, enabled=False) around it in the "
        "forward code, with FP32 operands.",
        layer, list(rules.fp32_ops),
        rules.is_module ? "but not " + list(rules.other_ops) : "but it is in no module"));
  }
}

void add_layers(const Policy& policy, const Graph& graph, PytorchRecipe& recipe,
                std::vector<std::string>& unsaid) {
  std::vector<std::string> order;
  std::map<std::string, LayerRules> layers;
  for (const Node& node : graph.nodes) {
    if (node.is_backward()) continue;
    const std::string layer = layer_of(graph, node);
    const auto [at, is_new] = layers.try_emplace(layer);
    if (is_new) order.push_back(layer);
    if (node.layer.empty()) at->second.is_module = false;
    add_node(policy, layer, node, at->second);
  }
  for (const std::string& layer : order) add_layer(layer, layers.at(layer), recipe, unsaid);
}

void add_other_rules(const Policy& policy, std::vector<std::string>& unsaid) {
  for (const PolicyRule& rule : policy.rules) {
    const std::string where = rule.op == "*" ? rule.layer : rule.layer + ", " + rule.op;
    const std::string site = where + (rule.role == "*" ? "" : ", " + rule.role) +
                             (rule.point == "*" ? "" : ", " + rule.point);
    if (policy.low == nullptr && rule.compute != nullptr) {
      unsaid.push_back(fmt::format(
          "{}: computed in {}: without autocast, cast operands and results in the forward code.",
          where, rule.compute->name));
    }
    if (rule.format != nullptr) {
      unsaid.push_back(fmt::format("{}: values are rounded to {}.", site, rule.format->name));
    }
    if (rule.rounding) {
      unsaid.push_back(
          fmt::format("{}: values are rounded to {}.", site, to_string(*rule.rounding)));
    }
    if (rule.accumulator != nullptr) {
      unsaid.push_back(
          fmt::format("{}: products are summed in {}.", where, rule.accumulator->name));
    }
    if (rule.loss_scale) {
      unsaid.push_back(
          fmt::format("{}: gradients have a further scale of {:g}.", where, *rule.loss_scale));
    }
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

// The first alias of these formats is torch's name.
std::string torch_dtype(const std::string& format) {
  return "torch." + find_format(format).aliases.front();
}

PytorchRecipe pytorch_recipe(const Policy& policy, const Graph& graph,
                             std::vector<std::string>& unsaid) {
  PytorchRecipe recipe;
  recipe.model = graph.name;
  const std::set<std::string> ops = listed_names(graph);
  const bool has_autocast = policy.low != nullptr;
  const Policy torch =
      has_autocast ? nearest_torch_preset(policy, ops) : find_policy(kReferenceLane);
  if (has_autocast && torch.low == nullptr) {
    unsaid.push_back(
        fmt::format("Autocast to {}: torch.autocast has fp16 and bf16 only.", policy.low->name));
  } else if (has_autocast) {
    recipe.format = policy.low->name;
    recipe.weight_cache = policy.weight_cache;
    recipe.op_lists = torch.label();
    add_op_lists(policy, torch, ops, unsaid);
  }
  if (has_autocast) add_layers(policy, graph, recipe, unsaid);
  add_other_rules(policy, unsaid);
  add_unsaid_numerics(policy, torch, unsaid);
  recipe.transformer_engine = transformer_engine_call(policy, unsaid);
  recipe.scaler = grad_scaler(policy.loss_scale);
  add_unsaid_loss_scale(policy, unsaid);
  return recipe;
}

}  // namespace lockstep
