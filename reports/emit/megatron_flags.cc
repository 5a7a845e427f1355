// Format, recipe, blocks in BF16, loss scale, reduction: a function each.
#include "reports/emit/megatron_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "reports/emit/comment_head.h"
#include "reports/pytorch/pytorch_layers.h"
#include "reports/pytorch/pytorch_module.h"
#include "reports/pytorch/pytorch_recipe.h"
#include "reports/pytorch/pytorch_scaling.h"
#include "reports/pytorch/pytorch_sharded.h"
#include "reports/pytorch/pytorch_unsaid.h"
#include "src/core/text.h"
#include "src/graph/composed_ops.h"
#include "src/graph/op.h"
#include "src/lower/model_places.h"
#include "src/policy/find_policy.h"
#include "src/policy/loss_scale.h"

namespace lockstep {
namespace {

using Flags = std::vector<std::string>;

constexpr std::string_view kMegatronScaler = "megatron";
constexpr std::string_view kSoftmax = "softmax";  // the op that Megatron has a flag for

// Gradients in this format need no loss scale.
bool has_fp32_range(const Format& format) {
  const Format& fp32 = find_format("fp32");
  return format.emax == fp32.emax;
}

struct RecipeFlags {
  std::string_view recipe;  // a class of Transformer Engine
  std::string_view flags;
  bool is_fp4, takes_blocks;
  bool is_fast;  // forward products use fast accumulation
};
constexpr RecipeFlags kRecipes[] = {
    {"DelayedScaling", "--fp8-recipe delayed", false, false, true},
    {"Float8CurrentScaling", "--fp8-recipe tensorwise", false, true, true},
    {"MXFP8BlockScaling", "--fp8-recipe mxfp8", false, true, false},
    {"Float8BlockScaling", "--fp8-recipe blockwise", false, true, false},
    {"NVFP4BlockScaling", "--fp4-recipe nvfp4", true, true, false},
};

std::string unquoted(std::string_view literal) {
  return literal.starts_with('"') ? std::string(literal.substr(1, literal.size() - 2))
                                  : std::string(literal);
}

// The 16-bit format of weights and products, or null.
const Format* model_format(const Policy& policy) {
  if (policy.low != nullptr) return policy.low;
  return policy.master_weights && policy.master->is_fp32() ? policy.weight : nullptr;
}

void add_format(const EmitFacts& facts, Flags& flags, std::vector<std::string>& unsaid) {
  const Policy& policy = facts.policy;
  const Format* format = model_format(policy);
  const bool is_known = format != nullptr && has_torch_autocast(*format);
  if (is_known) flags.push_back("--" + format->name);
  if (format != nullptr && !is_known)
    unsaid.push_back(fmt::format("Products in {}: Megatron has --bf16 and --fp16.", format->name));
  if (policy.gemm_operand != nullptr)
    unsaid.push_back(fmt::format("Factors of products are rounded to {}: there is no such flag.",
                                 policy.gemm_operand->name));
  if (policy.low == nullptr) return;
  std::set<std::string> wide;
  for (const Node& node : facts.graph.nodes) {
    const std::string name = node.is_backward() ? "" : listed_name(node, find_op(node.op));
    if (!name.empty() && policy.class_of(name) == CastClass::kFp32) wide.insert(name);
  }
  unsaid.push_back(fmt::format(
      "Autocast: Megatron's weights are {} with FP32 masters, and no operation is cast by "
      "itself{}.",
      policy.low->name,
      wide.empty()
          ? ""
          : "; in the policy these are in FP32: " + join({wide.begin(), wide.end()}, ", ")));
  if (wide.contains(std::string(kSoftmax))) flags.push_back("--attention-softmax-in-fp32");
}

// The linear layers of a model's blocks; the list of blocks with most of them counts.
struct Blocks {
  std::optional<std::string> list;  // "layers"; nothing: the model has none
  std::map<size_t, std::vector<std::string>> kept, scaled;
  std::vector<std::string> others;  // scaled, in no block
  size_t count = 0;
};

Blocks blocks_of(const ScaledLinears& linears) {
  std::map<std::string, size_t> sizes;
  Blocks found;
  for (const auto* layers : {&linears.layers, &linears.kept}) {
    for (const std::string& layer : *layers) {
      if (const auto block = numbered_module(layer)) ++sizes[block->list];
    }
  }
  if (!sizes.empty())
    found.list = std::ranges::max_element(sizes, {}, [](auto& s) { return s.second; })->first;
  const auto add = [&](const std::string& layer, auto& to, bool is_scaled) {
    const auto block = numbered_module(layer);
    if (block && block->list == found.list) {
      to[block->number].push_back(layer);
      found.count = std::max(found.count, block->number + 1);
    } else if (is_scaled) {
      found.others.push_back(layer);
    }
  };
  for (const std::string& layer : linears.layers) add(layer, found.scaled, true);
  for (const std::string& layer : linears.kept) add(layer, found.kept, false);
  return found;
}

// Blocks all of whose linear layers stay in BF16, at the start and at the end.
void add_blocks(const Blocks& blocks, bool takes_blocks, Flags& flags,
                std::vector<std::string>& unsaid) {
  const auto is_whole = [&](size_t i) {
    return blocks.kept.contains(i) && !blocks.scaled.contains(i);
  };
  size_t start = 0, end = 0;
  while (start < blocks.count && is_whole(start)) ++start;
  while (end < blocks.count - start && is_whole(blocks.count - 1 - end)) ++end;
  if (!takes_blocks) start = end = 0;
  if (start + end > 0) {
    flags.emplace_back("--first-last-layers-bf16");
    flags.push_back(fmt::format("--num-layers-at-start-in-bf16 {}", start));
    flags.push_back(fmt::format("--num-layers-at-end-in-bf16 {}", end));
  }
  std::vector<std::string> left;
  for (const auto& [number, layers] : blocks.kept) {
    if (number >= start && number < blocks.count - end)
      left.insert(left.end(), layers.begin(), layers.end());
  }
  if (left.empty()) return;
  unsaid.push_back(fmt::format(
      "{}: not rounded in the policy. {}; --emit te-debug names layers.", join(left, ", "),
      takes_blocks ? "Megatron's flags keep whole blocks at the start and at the end"
                   : "Megatron refuses blocks in BF16 with delayed scaling"));
}

// The literal of `key` in the fact RECIPE, or "".
std::string argument(const PythonTable& recipe, std::string_view key) {
  const auto at =
      std::ranges::find(recipe, key, [](auto& row) -> std::string_view { return row.first; });
  return at == recipe.end() ? "" : unquoted(at->second);
}

void add_recipe(const EmitFacts& facts, const std::string& module, Flags& flags,
                std::vector<std::string>& head, std::vector<std::string>& unsaid) {
  const std::optional<ScaledLinears> scaled =
      scaled_linears(facts.policy, facts.graph, ScalingLibrary::kTransformerEngine, unsaid);
  if (!scaled) return;
  const PythonTable& recipe = scaled->call.facts.front().table;
  const std::string name = argument(recipe, "class");
  const auto* row = std::ranges::find(kRecipes, name, &RecipeFlags::recipe);
  const bool is_changed = std::ranges::any_of(recipe, [](auto& r) {
    return r.first.starts_with("disable_") && r.second == python_bool(true);
  });
  const bool is_own = row != std::end(kRecipes) && !is_changed;
  const bool is_fp4 = row != std::end(kRecipes) && row->is_fp4;
  const std::string format = argument(recipe, "fp8_format");
  flags.push_back(is_fp4               ? "--fp4-format e2m1"
                  : format == "HYBRID" ? "--fp8-format hybrid"
                                       : "--fp8-format e4m3");
  if (is_own) {
    flags.emplace_back(row->flags);
    if (row->is_fast)
      unsaid.emplace_back("Forward products, and no others, use fast accumulation in Megatron.");
    for (const auto& [key, flag] : {std::pair{"margin", "--fp8-margin"},
                                    std::pair{"amax_history_len", "--fp8-amax-history-len"},
                                    std::pair{"amax_compute_algo", "--fp8-amax-compute-algo"}}) {
      const std::string value = argument(recipe, key);
      if (!value.empty()) flags.push_back(fmt::format("{} {}", flag, value));
    }
  } else {
    const std::string_view width = is_fp4 ? "fp4" : "fp8";
    const std::string factory = is_python_name(module) ? module : "amp";
    flags.push_back(fmt::format("--{}-recipe custom", width));
    flags.push_back(fmt::format("--{}-quantizer-factory {}.quantizer_factory", width, factory));
    head.push_back(
        fmt::format("{}.py, on Python's path: a file of --emit transformer-engine.", factory));
  }
  const Blocks blocks = blocks_of(*scaled);
  add_blocks(blocks, !is_own || row->takes_blocks, flags, unsaid);
  if (!blocks.others.empty())
    unsaid.push_back(
        fmt::format("{}: rounded in the policy; Megatron rounds the layers of its blocks "
                    "alone.",
                    join(blocks.others, ", ")));
}

void add_loss_scale(const Policy& policy, Flags& flags, std::vector<std::string>& unsaid) {
  const LossScaleSpec& spec = policy.loss_scale;
  const LossScaler& scaler = find_loss_scaler(spec.kind);
  if (!scaler.scales) return;
  if (const Format* format = model_format(policy); format == nullptr || has_fp32_range(*format)) {
    unsaid.emplace_back("The loss is scaled: Megatron scales it with --fp16 alone.");
    return;
  }
  if (!scaler.knows("growth_interval")) {
    flags.push_back(fmt::format("--loss-scale {:.17g}", spec.init_scale));
    return;
  }
  const double least = std::max(spec.min_scale, 1.0);
  flags.push_back(fmt::format("--initial-loss-scale {:.17g}", spec.init_scale));
  flags.push_back(fmt::format("--min-loss-scale {:.17g}", least));
  flags.push_back(fmt::format("--loss-scale-window {}", spec.growth_interval));
  flags.push_back(fmt::format("--hysteresis {}", spec.hysteresis));
  const LossScaler& megatron = find_loss_scaler(kMegatronScaler);
  const LossScaleSpec& own = megatron.defaults;
  if (scaler.name != megatron.name)
    unsaid.push_back(
        fmt::format("The loss scale follows the rule of {} ({}): Megatron has its own.",
                    scaler.name, scaler.help));
  if (spec.growth_factor != own.growth_factor || spec.backoff_factor != own.backoff_factor)
    unsaid.push_back(fmt::format(
        "The loss scale grows by {:g} and shrinks by {:g}: by {:g} and {:g} in "
        "Megatron.",
        spec.growth_factor, spec.backoff_factor, own.growth_factor, own.backoff_factor));
}

void add_reduction(const Policy& policy, Flags& flags, std::vector<std::string>& unsaid) {
  const Format* format = model_format(policy);
  if (format == nullptr) return;
  const Format* wanted = policy.all_reduce.format;
  if (wanted == nullptr) wanted = policy.low != nullptr ? &find_format("fp32") : policy.weight;
  if (wanted->is_fp32()) {
    flags.emplace_back("--accumulate-allreduce-grads-in-fp32");
  } else if (wanted == format && has_fp32_range(*wanted)) {
    flags.push_back("--grad-reduce-in-" + wanted->name);
  } else if (wanted != format) {
    unsaid.push_back(fmt::format("Gradients are reduced in {}: Megatron has fp32 and {}.",
                                 wanted->name, format->name));
  }
}

void add_rules(const Policy& policy, const Graph& graph, std::vector<std::string>& unsaid) {
  std::map<std::string, std::vector<std::string>> layers;  // by format
  for (const Node& node : graph.nodes) {
    if (node.is_backward()) continue;
    const std::string layer = layer_of(graph, node);
    const Format* format = compute_format(policy, layer, node.op);
    if (format == nullptr || format == model_format(policy)) continue;
    std::vector<std::string>& list = layers[format->name];
    if (std::ranges::count(list, layer) == 0) list.push_back(layer);
  }
  for (const auto& [format, list] : layers) {
    unsaid.push_back(fmt::format("{}: computed in {}; Megatron has no flag for layers by name.",
                                 join(list, ", "), format));
  }
}

}  // namespace

std::string megatron_flags(const EmitFacts& facts, const std::string& module,
                           std::vector<std::string>& unsaid) {
  const Policy& policy = facts.policy;
  Flags flags;
  std::vector<std::string> head = {"", "    source " + printable(module) + ".sh",
                                   "    torchrun pretrain_gpt.py \"${LOCKSTEP_FLAGS[@]}\" ...", "",
                                   "Flags of Megatron-LM of August 2026. Lockstep never ran it."};
  add_format(facts, flags, unsaid);
  add_recipe(facts, module, flags, head, unsaid);
  add_loss_scale(policy, flags, unsaid);
  add_reduction(policy, flags, unsaid);
  add_rules(policy, facts.graph, unsaid);
  const Policy torch = policy.low != nullptr ? nearest_torch_preset(policy, *policy.low, {})
                                             : find_policy(kReferenceLane);
  add_unsaid_numerics(without_sharded_words(policy, torch), torch, unsaid);
  std::string out =
      comment_head(facts, "Flags of Megatron-LM", head, unsaid) + "LOCKSTEP_FLAGS=(\n";
  for (const std::string& flag : flags) out += "  " + flag + "\n";
  return out + ")\n";
}

}  // namespace lockstep
