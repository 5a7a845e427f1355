// One pass over the forward nodes finds the format in which each module's parameters are read.
#include "reports/pytorch/pytorch_sharded.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "reports/pytorch/pytorch_layers.h"
#include "reports/pytorch/torch_dtype.h"
#include "src/graph/composed_ops.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

constexpr std::string_view kParameter = "p:";

// FSDP2 casts FP32 parameters to 16 bits for the modules.
bool has_copies(const Policy& policy) {
  return policy.low == nullptr && !policy.formats_as_captured && policy.master_weights &&
         policy.master->is_fp32() && !policy.weight->is_fp32();
}

// The 16-bit format in which a node reads its parameters, or FP32.
const Format& read_format(const Policy& policy, const std::string& layer, const Node& node) {
  const Format& fp32 = find_format("fp32");
  if (has_copies(policy)) {
    return std::ranges::count(policy.keep_fp32, node.op) > 0 ? fp32 : *policy.weight;
  }
  if (policy.low == nullptr) return fp32;
  if (const Format* format = compute_format(policy, layer, node.op)) {
    return has_torch_autocast(*format) ? *format : fp32;
  }
  const CastClass by_list = policy.class_of(listed_name(node, find_op(node.op)));
  return by_list == CastClass::kLowPrecision && has_torch_autocast(*policy.low) ? *policy.low
                                                                                : fp32;
}

struct ModuleReads {
  std::set<const Format*> formats;
  std::vector<std::string> layers;  // that read its parameters
};

// The module to shard by itself: the owner of the parameters if its own forward() reads them, else
// the one that does.
const std::string& sharded_module(const std::string& owner, const ModuleReads& reads) {
  return std::ranges::count(reads.layers, owner) > 0 ? owner : reads.layers.front();
}

}  // namespace

ShardedPrecision sharded_precision(const Policy& policy, const Graph& graph,
                                   std::vector<std::string>& unsaid) {
  const bool copies = has_copies(policy);
  const Format& fp32 = find_format("fp32");
  const Format& base = policy.low != nullptr && has_torch_autocast(*policy.low) ? *policy.low
                       : copies && has_torch_autocast(*policy.weight)           ? *policy.weight
                                                                                : fp32;
  ShardedPrecision made;
  made.param_dtype = base.is_fp32() ? "None" : torch_dtype(base);
  const Format& reduced = policy.all_reduce.format != nullptr ? *policy.all_reduce.format
                          : copies                            ? *policy.weight
                                                              : fp32;
  if (reduced.is_fp32() || has_torch_autocast(reduced)) {
    made.reduce_dtype = torch_dtype(reduced);
  } else {
    made.reduce_dtype = torch_dtype(fp32);
    unsaid.push_back(
        fmt::format("Gradients are reduced in {}: FSDP2 has torch's formats, and the "
                    "module says fp32.",
                    reduced.name));
  }
  made.output_dtype =
      policy.model_output != nullptr && copies ? torch_dtype(*policy.model_output) : "None";
  made.cast_forward_inputs = copies && (policy.model_input != nullptr || !policy.input->is_fp32());
  std::vector<std::string> order;
  std::map<std::string, ModuleReads> owners;
  for (const Node& node : graph.nodes) {
    if (node.is_backward()) continue;
    const std::string layer = node.layer.empty() ? "" : layer_of(graph, node);
    for (const std::string& input : node.inputs) {
      if (!input.starts_with(kParameter)) continue;
      const std::string name = input.substr(kParameter.size());
      const size_t dot = name.rfind('.');
      const std::string owner = dot == std::string::npos ? "" : name.substr(0, dot);
      const auto [at, is_new] = owners.try_emplace(owner);
      if (is_new) order.push_back(owner);
      at->second.formats.insert(&read_format(policy, layer, node));
      at->second.layers.push_back(layer);
    }
  }
  for (const std::string& owner : order) {
    const ModuleReads& reads = owners.at(owner);
    const Format& format = reads.formats.size() == 1 ? **reads.formats.begin() : fp32;
    if (&format == &base) continue;
    const std::string& module = sharded_module(owner, reads);
    if (module.empty()) {
      unsaid.push_back(fmt::format(
          "{}: parameters are read in {}; FSDP2 gives those of the whole model one format, {}.",
          owner.empty() ? "the model itself" : owner, format.name, base.name));
      continue;
    }
    const std::pair<std::string, std::string> row{module, torch_dtype(format)};
    if (std::ranges::count(made.modules, row) == 0) made.modules.push_back(row);
  }
  return made;
}

Policy without_sharded_words(const Policy& policy, const Policy& torch) {
  Policy rest = policy;
  const Format* reduced = policy.all_reduce.format;
  if (reduced == nullptr || reduced->is_fp32() || has_torch_autocast(*reduced))
    rest.all_reduce.format = torch.all_reduce.format;
  // The reduced gradient has the shard's dtype, and micro-batches add up in reduce_dtype.
  if (policy.all_reduce.result != nullptr && policy.all_reduce.result->is_fp32())
    rest.all_reduce.result = torch.all_reduce.result;
  if (policy.gradient_sum == reduced) rest.gradient_sum = torch.gradient_sum;
  if (!has_copies(policy)) return rest;
  rest.weight = torch.weight;
  rest.master_weights = false;
  rest.keep_fp32.clear();
  rest.model_output = nullptr;
  rest.model_input = nullptr;
  rest.input = torch.input;
  return rest;
}

}  // namespace lockstep
