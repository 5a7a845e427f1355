// What the libraries are called with, and the linear layers that they are for.
#include "reports/pytorch/pytorch_scaling.h"

#include <fmt/format.h>

#include <algorithm>

#include "emulation/kernels/scaled_fp8.h"
#include "reports/pytorch/pytorch_layers.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

const Format& e4m3() {
  return find_format("fp8_e4m3+saturate");
}
const Format& e5m2() {
  return find_format("fp8_e5m2+saturate");
}

bool is_fp8_forward(const FactorScaling& s) {
  return s.activation.element == &e4m3() && s.weight.element == &e4m3() &&
         (s.gradient.element == &e4m3() || s.gradient.element == &e5m2());
}

bool rounds_to_nearest(const FactorFormat& factor) {
  return factor.rounding == Rounding::kNearestEven;
}
bool rounds_to_nearest(const FactorScaling& s) {
  return rounds_to_nearest(s.activation) && rounds_to_nearest(s.weight) &&
         rounds_to_nearest(s.gradient);
}

bool is_all(const FactorScaling& s, const BlockFormat& block) {
  return s.activation.block == &block && s.weight.block == &block && s.gradient.block == &block &&
         !s.activation.square && !s.gradient.square;
}

bool is_mxfp8(const FactorScaling& s) {
  return s.kind == ScalingKind::kBlock && rounds_to_nearest(s) && !s.weight.square &&
         is_all(s, find_block_format("mxfp8_e4m3+rceil"));
}

std::string quoted(std::string_view text) {
  return fmt::format("\"{}\"", text);
}

PythonTable nvfp4_call(const FactorScaling& s) {
  const bool is_nvfp4 = is_all(s, find_block_format("nvfp4")) && rounds_to_nearest(s.activation) &&
                        rounds_to_nearest(s.weight);
  const bool is_stochastic = s.gradient.rounding == Rounding::kStochastic;
  if (!is_nvfp4 || !(is_stochastic || rounds_to_nearest(s.gradient))) return {};
  return {{"class", quoted("NVFP4BlockScaling")},
          {"disable_rht", python_bool(true)},
          {"disable_stochastic_rounding", python_bool(!is_stochastic)},
          {"disable_2d_quantization", python_bool(!s.weight.square)}};
}

PythonTable transformer_engine_call(const FactorScaling& s) {
  const std::string format = quoted(s.gradient.element == &e4m3() ? "E4M3" : "HYBRID");
  const bool is_fp8 = is_fp8_forward(s) && rounds_to_nearest(s);
  switch (s.kind) {
    case ScalingKind::kNone:
    case ScalingKind::kUnit:
      return {};
    case ScalingKind::kCurrent:
      // Other numbers are set by environment variables or by private fields.
      if (!is_fp8 || s.current.power_of_two || s.current.amax_epsilon != 0) return {};
      return {{"class", quoted("Float8CurrentScaling")}, {"fp8_format", format}};
    case ScalingKind::kDelayed: {
      if (!is_fp8) return {};
      const bool is_max = s.delayed.choice == AmaxChoice::kMax;
      return {{"class", quoted("DelayedScaling")},
              {"fp8_format", format},
              {"margin", fmt::to_string(s.delayed.margin)},
              {"amax_history_len", fmt::to_string(s.delayed.history_length)},
              {"amax_compute_algo", quoted(is_max ? "max" : "most_recent")}};
    }
    case ScalingKind::kBlock:
      if (!is_mxfp8(s)) return nvfp4_call(s);
      return {{"class", quoted("MXFP8BlockScaling")}, {"fp8_format", quoted("E4M3")}};
  }
  return {};
}

void add_torchao(const FactorScaling& s, ScaledLinears& found) {
  const bool is_current = s.kind == ScalingKind::kCurrent && s.current.amax_epsilon == 0;
  if (is_current && is_fp8_forward(s) && rounds_to_nearest(s)) {
    // Sums are those of the hardware; use_fast_accum would cut them shorter.
    found.torchao = ScaledLinears::Torchao::kFloat8;
    found.gradient_dtype = s.gradient.element == &e4m3() ? "e4m3fn" : "e5m2";
    found.power_of_two = s.current.power_of_two;
  } else if (is_mxfp8(s)) {
    found.torchao = ScaledLinears::Torchao::kMxfp8;
  }
}

// Whether the product may be that of an nn.Linear: its weight is the layer's `weight`, or one that
// it shares with another layer.
bool may_be_linear_module(const Node& node, const std::string& layer) {
  const std::string weight = node.inputs.size() > 1 ? node.inputs[1] : "";
  return !node.layer.empty() && weight.starts_with("p:") &&
         (weight == "p:" + layer + ".weight" || !weight.starts_with("p:" + layer + "."));
}

void add_scaled_layers(const Policy& policy, const Graph& graph, ScaledLinears& found,
                       std::vector<std::string>& unsaid) {
  for (const Node& node : graph.nodes) {
    if (node.is_backward() || std::ranges::count(policy.scaling.ops, node.op) == 0) continue;
    const std::string layer = layer_of(graph, node);
    if (compute_format(policy, layer, node.op) != nullptr) continue;
    if (may_be_linear_module(node, layer)) {
      if (std::ranges::count(found.layers, layer) == 0) found.layers.push_back(layer);
      continue;
    }
    const std::string sentence = fmt::format(
        "{}: factors of {} are rounded to {}: the product is not that of an nn.Linear, and stays "
        "in {}.",
        layer, node.op, found.what, policy.low != nullptr ? policy.low->name : "fp32");
    if (std::ranges::count(unsaid, sentence) == 0) unsaid.push_back(sentence);
  }
}

}  // namespace

std::optional<ScaledLinears> scaled_linears(const Policy& policy, const Graph& graph,
                                            std::vector<std::string>& unsaid) {
  const FactorScaling& s = policy.scaling;
  if (s.kind == ScalingKind::kNone) return std::nullopt;
  ScaledLinears found;
  found.what = fmt::format("{} (weights: {}, gradients: {}) with {} scales", s.activation.name(),
                           s.weight.name(), s.gradient.name(), to_string(s.kind));
  if (s.ops == FactorScaling().ops && s.is_uniform()) {
    found.transformer_engine = transformer_engine_call(s);
    add_torchao(s, found);
  }
  if (found.transformer_engine.empty() && found.torchao == ScaledLinears::Torchao::kNone) {
    unsaid.push_back(fmt::format(
        "The factors of {} are rounded to {}: autocast has no such formats, and no configuration "
        "of torchao or Transformer Engine is known to be the same.",
        join(s.ops, ", "), found.what));
    return std::nullopt;
  }
  add_scaled_layers(policy, graph, found, unsaid);
  return found;
}

}  // namespace lockstep
