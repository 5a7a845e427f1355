// See network.h.
#include "analysis/cost/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "analysis/ranges/range_samples.h"
#include "src/graph/json.h"
#include "src/graph/op.h"
#include "src/lower/lower.h"

namespace lockstep {
namespace {

constexpr std::string_view kLinear = "linear";
constexpr int kBytes16 = 2, kBytes32 = 4;

std::string extents(const ProductFact& fact) {
  const auto extent = [&](char name) {
    return name == 'm' ? fact.shape.m : name == 'n' ? fact.shape.n : fact.shape.k;
  };
  const char first = fact.unaligned_fp8.front();
  return fmt::format("{} is {}, no multiple of {}", first, extent(first), kAlignmentFp8);
}

int factor_bits(const Program& program, const Instruction& instruction) {
  int widest = 0;
  for (size_t i = 0; i < instruction.factor_formats.size(); ++i) {
    if (instruction.factor_formats[i] == nullptr) continue;
    const ProgramValue& v = program.values[static_cast<size_t>(instruction.inputs[i])];
    int bits = instruction.factor_formats[i]->storage_bits();
    if (v.scaled_cast >= 0) {
      const FactorFormat& to = program.scaled_casts[static_cast<size_t>(v.scaled_cast)].to;
      bits = to.block != nullptr ? static_cast<int>(to.block->bits_per_element())
                                 : to.element->storage_bits();
    }
    widest = std::max(widest, bits);
  }
  return widest;
}

Program lowered(const Network& network, const Policy& policy) {
  return lower(network.step, network.sites, policy);
}

}  // namespace

Network read_network(const RunFile& run) {
  Network network;
  network.step = graph_from_json(run.graph_json());
  network.sites = run.sites();
  network.memory = run.lanes().front().memory.value_or(MemoryFacts{});
  std::set<std::string> seen, linear;
  const Policy base = autocast_policy(std::string(base_formats().front().format));
  for (const int32_t id : sites_in_range(run, base)) {
    const std::string& layer = network.sites.sites[static_cast<size_t>(id)].layer;
    if (seen.insert(layer).second) network.layers.push_back(layer);
  }
  for (const Node& node : network.step.nodes) {
    const std::string layer = layer_of(network.step, node);
    if (!node.is_backward() && node.op == kLinear && linear.insert(layer).second) {
      network.linear.push_back(layer);
    }
  }
  for (const ProductFact& fact : product_facts(network.step)) {
    if (!fact.op.starts_with(kLinear) || fact.unaligned_fp8.empty()) continue;
    network.unaligned.emplace(fact.layer, extents(fact));
  }
  return network;
}

StepCost cost_of(const Network& network, const Policy& policy, const MemoryFacts& memory,
                 const Gpu& gpu) {
  return step_cost(network.step, lowered(network, policy), memory, gpu);
}

std::map<std::string, double> bit_operations(const Network& network, const Policy& policy) {
  const Program program = lowered(network, policy);
  std::map<std::string, double> multiply_adds, by_layer;
  for (const ProductFact& fact : product_facts(network.step)) {
    multiply_adds[fact.node] += static_cast<double>(fact.multiply_adds);
  }
  for (const Instruction& instruction : program.instructions) {
    const Node& node = network.step.nodes[static_cast<size_t>(instruction.node)];
    const auto found = multiply_adds.find(node.id);
    if (instruction.kind != InstructionKind::kOp || found == multiply_adds.end()) continue;
    by_layer[layer_of(network.step, node)] += found->second * factor_bits(program, instruction);
  }
  return by_layer;
}

std::vector<CastEdge> cast_edges(const Network& network, const std::vector<std::string>& layers,
                                 const Gpu& gpu) {
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < layers.size(); ++i) index.emplace(layers[i], i);
  std::map<std::string, size_t> maker;  // value -> layer
  std::map<std::pair<size_t, size_t>, double> bytes;
  for (const Node& node : network.step.nodes) {
    const auto layer = index.find(layer_of(network.step, node));
    if (node.is_backward() || layer == index.end()) continue;
    for (const std::string& input : node.inputs) {
      const auto from = maker.find(input);
      if (from == maker.end() || from->second == layer->second) continue;
      const TensorType& type = network.step.type_of(input);
      if (type.element != ElementType::kFloat) continue;
      const auto ends = std::minmax(from->second, layer->second);
      bytes[{ends.first, ends.second}] +=
          2.0 * (kBytes16 + kBytes32) * static_cast<double>(element_count(type.shape));
    }
    for (size_t k = 0; k < node.outputs.size(); ++k) maker[output_id(node, k)] = layer->second;
  }
  std::vector<CastEdge> edges;
  for (const auto& [ends, count] : bytes) {
    edges.push_back({ends.first, ends.second, count / (gpu.bandwidth * kGiga)});
  }
  return edges;
}

}  // namespace lockstep
