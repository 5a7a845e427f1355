// The libraries, a row each, and the linear layers that they are for.
#include "reports/pytorch/pytorch_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "emulation/accumulator/accumulator.h"
#include "reports/pytorch/pytorch_layers.h"
#include "reports/pytorch/pytorch_torchao.h"
#include "reports/pytorch/pytorch_transformer_engine.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

struct LibraryRow {
  ScalingLibrary library;
  std::string_view kind, name;  // of --emit, and as it is printed
  std::optional<LibraryCall> (*call)(const FactorScaling& scaling, const FastSums& fast);
};
constexpr LibraryRow kLibraries[] = {
    {ScalingLibrary::kTorchao, "torchao", "torchao 0.18", torchao_call},
    {ScalingLibrary::kTransformerEngine, "transformer-engine", "Transformer Engine 2.20",
     transformer_engine_call},
};

// Whether the product may be that of an nn.Linear: its weight is the layer's `weight`, or one that
// it shares with another layer.
bool may_be_linear_module(const Node& node, const std::string& layer) {
  const std::string weight = node.inputs.size() > 1 ? node.inputs[1] : "";
  return !node.layer.empty() && weight.starts_with("p:") &&
         (weight == "p:" + layer + ".weight" || !weight.starts_with("p:" + layer + "."));
}

void add_once(std::vector<std::string>& list, const std::string& word) {
  if (std::ranges::count(list, word) == 0) list.push_back(word);
}

std::string described(const FactorScaling& s) {
  std::string out =
      fmt::format("{} (weights: {}, gradients: {}) with {} scales", s.activation.name(),
                  s.weight.name(), s.gradient.name(), to_string(s.kind));
  for (const ProductInfo& info : products()) {
    const ProductScaling& own = s.of(info.product);
    if (own == ProductScaling()) continue;
    if (!own.is_scaled) {
      out += fmt::format(", not in {}", info.name);
      continue;
    }
    const bool is_fprop = info.product == Product::kFprop;
    const bool is_wgrad = info.product == Product::kWgrad;
    std::vector<std::string> factors;
    if (is_fprop || is_wgrad)
      factors.push_back(s.factor(info.product, FactorRole::kActivation).name());
    if (!is_wgrad) factors.push_back(s.factor(info.product, FactorRole::kWeight).name());
    if (!is_fprop) factors.push_back(s.factor(info.product, FactorRole::kGradient).name());
    out += fmt::format(", {} of {}{}", info.name, join(factors, " and "),
                       own.hadamard == Hadamard::kNone ? "" : " after a Hadamard transform");
  }
  return out;
}

// "; --emit torchao does" or "".
std::string others_that_can(const FactorScaling& scaling, ScalingLibrary library) {
  std::vector<std::string> kinds;
  for (const std::string& kind : kinds_that_scale(scaling, library))
    kinds.push_back("--emit " + kind);
  if (kinds.empty()) return "";
  return fmt::format("; {} {}", join(kinds, " and "), kinds.size() == 1 ? "does" : "do");
}

}  // namespace

std::vector<std::string> kinds_that_scale(const FactorScaling& scaling, ScalingLibrary library) {
  std::vector<std::string> kinds;
  for (const LibraryRow& row : kLibraries) {
    if (row.library != library && row.call(scaling, kNoFastSums)) kinds.emplace_back(row.kind);
  }
  return kinds;
}

ScaledLinears find_scaled_layers(const Policy& policy, const Graph& graph,
                                 std::vector<std::string>* unsaid) {
  ScaledLinears found;
  if (policy.scaling.kind == ScalingKind::kNone) return found;
  found.what = described(policy.scaling);
  for (const Node& node : graph.nodes) {
    if (node.is_backward() || std::ranges::count(policy.scaling.ops, node.op) == 0) continue;
    const std::string layer = layer_of(graph, node);
    const bool is_module = may_be_linear_module(node, layer);
    if (compute_format(policy, layer, node.op) != nullptr) {
      if (is_module) add_once(found.kept, layer);
    } else if (is_module) {
      add_once(found.layers, layer);
    } else if (unsaid != nullptr) {
      add_once(*unsaid,
               fmt::format("{}: factors of {} are rounded to {}: the product is not that of "
                           "an nn.Linear, and stays in {}.",
                           layer, node.op, found.what,
                           policy.low != nullptr ? policy.low->name : "fp32"));
    }
  }
  return found;
}

std::optional<ScaledLinears> scaled_linears(const Policy& policy, const Graph& graph,
                                            ScalingLibrary library,
                                            std::vector<std::string>& unsaid) {
  const FactorScaling& s = policy.scaling;
  if (s.kind == ScalingKind::kNone) return std::nullopt;
  const auto* row = std::ranges::find(kLibraries, library, &LibraryRow::library);
  const bool is_linear = s.ops == FactorScaling().ops;
  const bool is_known = row != std::end(kLibraries);
  if (is_linear && is_known) {
    if (const std::optional<LibraryCall> call = row->call(s, fast_sums(policy))) {
      ScaledLinears found = find_scaled_layers(policy, graph, &unsaid);
      found.library = row->name;
      found.call = *call;
      return found;
    }
  }
  unsaid.push_back(fmt::format(
      "The factors of {} are rounded to {}: {}{}.", join(s.ops, ", "), described(s),
      is_known ? fmt::format("no configuration of {} is known to be the same", row->name)
               : "autocast has no such formats",
      is_linear ? others_that_can(s, library) : ""));
  return std::nullopt;
}

}  // namespace lockstep
