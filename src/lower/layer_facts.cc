// Walks graph and program once each; the extents come from the ops' rows.
#include "src/lower/layer_facts.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "src/core/error.h"
#include "src/graph/infer.h"
#include "src/graph/json_text.h"

namespace lockstep {
namespace {

std::string unaligned(const ProductShape& shape, int64_t alignment) {
  std::string names;
  if (shape.in_channels > 0) {
    if (shape.in_channels % alignment != 0) names += 'c';
    if (shape.out_channels % alignment != 0) names += 'o';
    return names;
  }
  if (shape.m % alignment != 0) names += 'm';
  if (shape.n % alignment != 0) names += 'n';
  if (shape.k % alignment != 0) names += 'k';
  return names;
}

constexpr int kBitsPerByte = 8;

// `integer_bytes`: the size of an element without a format.
int64_t bytes(const TensorType& type, const Format* format, int integer_bytes = 4) {
  const int bits = format != nullptr ? format->storage_bits() : integer_bytes * kBitsPerByte;
  return (element_count(type.shape) * bits + kBitsPerByte - 1) / kBitsPerByte;
}

// Of one optimizer state of a parameter whose weight has the format.
int64_t state_bytes(const TensorType& type, const Policy& policy, const Format* weight) {
  constexpr int64_t kScaleBytes = 4;
  const int64_t count = element_count(type.shape);
  const StateCodes* codes = policy.codes_of(weight, count);
  if (codes == nullptr) return bytes(type, policy.state_of(weight));
  const int64_t blocks = (count + codes->block_size - 1) / codes->block_size;
  return count * codes->bits / kBitsPerByte + blocks * kScaleBytes;
}

}  // namespace

std::vector<ProductFact> product_facts(const Graph& step) {
  std::vector<ProductFact> facts;
  for (const Node& node : step.nodes) {
    const OpDef& op = find_op(node.op);
    if (op.sums.products == nullptr) continue;
    std::vector<TensorType> inputs;
    for (const std::string& input : node.inputs) inputs.push_back(step.type_of(input));
    for (const ProductShape& s : op.sums.products(node, inputs)) {
      facts.push_back({node.id, layer_of(step, node), node.op, node.is_backward(), s,
                       unaligned(s, kAlignment16Bit), unaligned(s, kAlignmentFp8),
                       s.count * s.m * s.n * s.k, s.count * (s.m * s.k + s.k * s.n + s.m * s.n)});
    }
  }
  return facts;
}

MemoryFacts memory_facts(const Graph& step, const Program& program, const Policy& policy,
                         const StateShapes& optimizer_states) {
  MemoryFacts facts;
  for (const Parameter& p : step.parameters) {
    const auto& weight = program.values[program.external.at("p:" + p.name)];
    facts.weights += bytes(p.type, weight.format);
    const auto gradient = program.results.find("grad:" + p.name);
    if (gradient == program.results.end()) continue;
    facts.gradients += bytes(p.type, program.values[gradient->second].format);
    for (const Shape& shape : optimizer_states(p)) {
      facts.optimizer_state += state_bytes({shape, p.type.element}, policy, weight.format);
    }
    if (policy.has_master(weight.format)) facts.master_weights += bytes(p.type, policy.master);
    if (policy.update_rounding == UpdateRounding::kKahan) {
      const bool has_master = policy.has_master(weight.format);
      facts.kahan_terms += bytes(p.type, has_master ? policy.master : weight.format);
    }
  }
  std::map<int, int> forward;  // integer value -> bytes of an element
  std::set<int> kept;
  for (const Instruction& instruction : program.instructions) {
    const Node& node = step.nodes[static_cast<size_t>(instruction.node)];
    const bool is_backward = node.is_backward();
    if (!is_backward) {
      for (const int value : instruction.outputs)
        forward[value] = find_op(node.op).formats.integer_bytes;
    }
    if (!is_backward || instruction.kind == InstructionKind::kObserve) continue;
    for (const int value : instruction.inputs) {
      if (forward.contains(value)) kept.insert(value);
    }
  }
  for (const int value : kept) {
    const ProgramValue& v = program.values[static_cast<size_t>(value)];
    facts.activations += bytes(v.type, v.format, forward.at(value));
  }
  return facts;
}

std::string to_json(const std::vector<ProductFact>& facts) {
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  for (const ProductFact& fact : facts) {
    nlohmann::ordered_json line = {{"node", fact.node},
                                   {"layer", fact.layer},
                                   {"op", fact.op},
                                   {"backward", fact.backward},
                                   {"count", fact.shape.count},
                                   {"m", fact.shape.m},
                                   {"n", fact.shape.n},
                                   {"k", fact.shape.k},
                                   {"unaligned_16bit", fact.unaligned_16bit},
                                   {"unaligned_fp8", fact.unaligned_fp8},
                                   {"multiply_adds", fact.multiply_adds},
                                   {"elements", fact.elements},
                                   {"bytes_32bit", fact.bytes(32)},
                                   {"bytes_16bit", fact.bytes(16)},
                                   {"bytes_8bit", fact.bytes(8)}};
    if (fact.shape.in_channels > 0) {
      line["in_channels"] = fact.shape.in_channels;
      line["out_channels"] = fact.shape.out_channels;
    }
    lines.push_back(std::move(line));
  }
  return json_lines(lines);
}

std::string to_json(const MemoryFacts& facts) {
  const nlohmann::ordered_json json = {
      {"weights", facts.weights},         {"master_weights", facts.master_weights},
      {"gradients", facts.gradients},     {"optimizer_state", facts.optimizer_state},
      {"kahan_terms", facts.kahan_terms}, {"activations", facts.activations}};
  return json.dump();
}

MemoryFacts memory_facts_from_json(std::string_view json) {
  const nlohmann::json j = parse_json(json);
  const auto bytes = [&](const char* key, bool is_required = true) -> int64_t {
    const auto found = j.find(key);
    if (found == j.end() && !is_required) return 0;
    if (found != j.end() && found->is_number_unsigned() && *found <= uint64_t{INT64_MAX}) {
      return found->get<int64_t>();
    }
    throw InputError(fmt::format("memory: '{}' must be a number of bytes", key));
  };
  // Older files have no kahan_terms: none were counted.
  return {bytes("weights"),         bytes("master_weights"),     bytes("gradients"),
          bytes("optimizer_state"), bytes("kahan_terms", false), bytes("activations")};
}

}  // namespace lockstep
