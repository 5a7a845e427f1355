// One pass over the forward nodes collects what the rules ask of each layer; then one sentence or
// one region per layer.
#include "reports/pytorch/pytorch_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "src/core/text.h"
#include "src/graph/composed_ops.h"
#include "src/graph/op.h"
#include "src/policy/find_policy.h"

namespace lockstep {
namespace {

// The presets of torch.autocast are named after it: torch-autocast-fp16, torch-autocast-bf16-cpu.
constexpr std::string_view kTorchPresets = "torch-autocast-";
// What cuBLAS and cuDNN compute in PyTorch, by the switch that lets them read TF32: the ops of
// these presets.
constexpr std::string_view kCublasPreset = "tf32-matmul", kCudnnPreset = "tf32-conv";

CastClass class_in(const Policy& policy, const Node& node) {
  return policy.class_of(listed_name(node, find_op(node.op)));
}

// What the rules require of the ops of one layer.
struct LayerRules {
  size_t fp32_count = 0;
  bool is_module = true;
  std::set<std::string> fp32_ops, other_ops, autocast_off_ops;
  std::map<std::string, std::set<std::string>> formats;  // other than FP32 -> its ops
  // Ops that a region of their format would not compute in it.
  std::set<std::string> outside_lists;
};

bool matches(const PolicyRule& rule, const std::string& layer, const std::string& op) {
  return glob_match(rule.layer, layer) && glob_match(rule.op, op);
}

bool is_in_region(const Node& node, const Format& format) {
  // It makes no difference whether moved elements are rounded before or after.
  if (find_op(node.op).elements.is_view) return true;
  const Policy torch = nearest_torch_preset(find_policy(kReferenceLane), format, {});
  return torch.low == &format && class_in(torch, node) == CastClass::kLowPrecision;
}

void add_node(const Policy& policy, const std::string& layer, const Node& node, LayerRules& found) {
  const CastClass by_list = class_in(policy, node);
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
    const bool by_itself = compute == policy.low && by_list == CastClass::kLowPrecision;
    if (by_itself) {
      found.other_ops.insert(node.op);
    } else {
      found.formats[compute->name].insert(node.op);
      if (!is_in_region(node, *compute)) found.outside_lists.insert(node.op);
    }
  }
}

std::string list(const std::set<std::string>& words) {
  return join({words.begin(), words.end()}, ", ");
}

// Whether the layer can run under an autocast of its own.
bool is_low_region(const LayerRules& rules) {
  return rules.is_module && rules.formats.size() == 1 && rules.outside_lists.empty() &&
         rules.other_ops.empty() && rules.fp32_count == 0 && rules.autocast_off_ops.empty();
}

void add_formats(const std::string& layer, const LayerRules& rules, PytorchRecipe& recipe,
                 std::vector<std::string>& unsaid) {
  if (is_low_region(rules)) {
    recipe.low_layers.emplace_back(layer, rules.formats.begin()->first);
    return;
  }
  for (const auto& [format, ops] : rules.formats) {
    unsaid.push_back(
        fmt::format("{}: {} computed in {} whatever the lists say: an autocast region "
                    "has torch's lists.",
                    layer, list(ops), format));
  }
}

void add_layer(const std::string& layer, const LayerRules& rules, PytorchRecipe& recipe,
               std::vector<std::string>& unsaid) {
  add_formats(layer, rules, recipe, unsaid);
  if (!rules.autocast_off_ops.empty()) {
    unsaid.push_back(
        fmt::format("{}: {} outside of autocast, in the formats of the operands: write "
                    "torch.autocast(device, enabled=False) around them in the forward code.",
                    layer, list(rules.autocast_off_ops)));
  }
  if (rules.fp32_count == 0) return;
  if (rules.is_module && rules.other_ops.empty() && rules.formats.empty()) {
    recipe.fp32_layers.push_back(layer);
  } else if (!rules.fp32_ops.empty()) {
    std::set<std::string> others = rules.other_ops;
    for (const auto& [format, ops] : rules.formats) others.insert(ops.begin(), ops.end());
    unsaid.push_back(fmt::format(
        "{}: {} in FP32, {}: write torch.autocast(device, enabled=False) around it in the "
        "forward code, with FP32 operands.",
        layer, list(rules.fp32_ops),
        rules.is_module ? "but not " + list(others) : "but it is in no module"));
  }
}

// Results of low layers are widened where no autocast would cast what reads them.
void add_widened_results(const PytorchRecipe& recipe, std::vector<std::string>& unsaid) {
  if (!recipe.format.empty() || recipe.low_layers.empty()) return;
  unsaid.push_back(fmt::format(
      "{}: the result is widened to FP32, so that functions of it (relu, gelu, a loss) compute in "
      "FP32; the policy computes them in {}.",
      recipe.low_layers.size() == 1 ? recipe.low_layers.front().first : "Layers in 16 bits",
      recipe.low_layers.front().second));
}

void add_other_rules(const Policy& policy, std::vector<std::string>& unsaid) {
  for (const PolicyRule& rule : policy.rules) {
    const std::string where = rule.op == "*" ? rule.layer : rule.layer + ", " + rule.op;
    const std::string site = where + (rule.role == "*" ? "" : ", " + rule.role) +
                             (rule.point == "*" ? "" : ", " + rule.point);
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

// Whether the policy narrows all of these ops that the graph has; absent: some of them.
std::optional<bool> narrows(const Policy& policy, const Graph& graph,
                            const std::vector<std::string>& ops) {
  const std::vector<std::string>& narrowed = policy.gemm_operand_ops;
  std::set<bool> found;
  for (const Node& node : graph.nodes) {
    if (node.is_backward() || std::ranges::count(ops, node.op) == 0) continue;
    found.insert(narrowed.empty() || std::ranges::count(narrowed, node.op) > 0);
  }
  if (found.empty()) {  // a model without such ops: as the rest of the list
    return narrowed.empty() || std::ranges::all_of(ops, [&](std::string_view op) {
             return std::ranges::count(narrowed, op) > 0;
           });
  }
  if (found.size() > 1) return std::nullopt;
  return *found.begin();
}

}  // namespace

Policy nearest_torch_preset(const Policy& policy, const Format& low,
                            const std::set<std::string>& ops) {
  const Policy* nearest = nullptr;
  std::tuple<long, bool, bool> best;
  const std::span<const Policy> all = presets();
  for (size_t i = all.size(); i-- > 0;) {
    const Policy& preset = all[i];
    if (!preset.name.starts_with(kTorchPresets) || preset.low != &low) continue;
    const auto alike = std::ranges::count_if(
        ops, [&](const std::string& op) { return preset.class_of(op) == policy.class_of(op); });
    const bool is_own = preset.label() == policy.extends || preset.label() == policy.label();
    const bool is_same_device = preset.recurrent_cells == policy.recurrent_cells;
    const std::tuple<long, bool, bool> rank{alike, is_own, is_same_device};
    if (nearest != nullptr && rank <= best) continue;
    nearest = &preset;
    best = rank;
  }
  return nearest != nullptr ? *nearest : find_policy(kReferenceLane);
}

bool has_torch_autocast(const Format& format) {
  return nearest_torch_preset(find_policy(kReferenceLane), format, {}).low == &format;
}

const Format* compute_format(const Policy& policy, const std::string& layer,
                             const std::string& op) {
  const Format* format = nullptr;
  for (const PolicyRule& rule : policy.rules) {  // the last one decides, as in lowering
    if (rule.decides_compute() && matches(rule, layer, op)) format = rule.compute;
  }
  return format;
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
  // In FP32 without TF32, FP32 layers are like all others.
  if (recipe.format.empty() && !recipe.tf32) recipe.fp32_layers.clear();
  add_widened_results(recipe, unsaid);
  add_other_rules(policy, unsaid);
}

std::optional<Tf32Switches> tf32_switches(const Policy& policy, const Graph& graph,
                                          std::vector<std::string>& unsaid) {
  if (policy.gemm_operand == nullptr) return std::nullopt;
  const auto matmul = narrows(policy, graph, find_policy(kCublasPreset).gemm_operand_ops);
  const auto cudnn = narrows(policy, graph, find_policy(kCudnnPreset).gemm_operand_ops);
  if (policy.gemm_operand->is_tf32() && matmul && cudnn) return Tf32Switches{*matmul, *cudnn};
  unsaid.push_back(fmt::format(
      "Factors of {} are rounded to {}: torch has one switch for TF32 in matrix products and one "
      "for it in convolutions and recurrent layers.",
      policy.gemm_operand_ops.empty() ? "products" : join(policy.gemm_operand_ops, ", "),
      policy.gemm_operand->name));
  return std::nullopt;
}

}  // namespace lockstep
