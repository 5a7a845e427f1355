// See moved_casts.h.
#include "analysis/fix/moved_casts.h"

#include <algorithm>
#include <map>

#include "src/lower/lower.h"

namespace lockstep {
namespace {

// By node: the format that each operand is cast to before the node reads it; null: it is not cast.
// PyTorch's ops compute in their operands' type, so what is computed in FP32 has operands in FP32.
using CastsByNode = std::map<int, std::vector<const Format*>>;

CastsByNode casts_of(const Program& program) {
  std::map<std::string, const Format*> made;  // by graph value: as it is stored, or results
  for (const auto& [name, value] : program.external) {
    const ProgramValue& stored = program.values[static_cast<size_t>(value)];
    made[stored.graph_value] = stored.format;
  }
  CastsByNode casts;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind != InstructionKind::kOp) continue;
    std::vector<const Format*>& of_node = casts[instruction.node];
    const Format* result =
        instruction.outputs.empty()
            ? nullptr
            : program.values[static_cast<size_t>(instruction.outputs.front())].format;
    for (const int input : instruction.inputs) {
      const ProgramValue& read = program.values[static_cast<size_t>(input)];
      const auto found = made.find(read.graph_value);
      const Format* to = nullptr;
      if (found != made.end() && found->second != nullptr) {
        const bool widens = result != nullptr && result->is_fp32() && !found->second->is_fp32();
        to = widens ? result : found->second != read.format ? read.format : nullptr;
      }
      of_node.push_back(to);
    }
    for (const int output : instruction.outputs) {
      const ProgramValue& result = program.values[static_cast<size_t>(output)];
      made[result.graph_value] = result.format;
    }
  }
  return casts;
}

}  // namespace

bool is_model_cast(const Policy& policy) {
  return policy.low == nullptr && !policy.weight->is_fp32();
}

std::vector<MovedCasts> moved_casts(const Graph& step, const SiteTable& sites, const Policy& before,
                                    const Policy& after) {
  const CastsByNode old = casts_of(lower(step, sites, before));
  const CastsByNode now = casts_of(lower(step, sites, after));
  std::vector<MovedCasts> moved;
  for (size_t n = 0; n < step.nodes.size(); ++n) {
    const Node& node = step.nodes[n];
    const auto found = now.find(static_cast<int>(n));
    if (node.is_backward() || found == now.end()) continue;
    const auto earlier = old.find(static_cast<int>(n));
    if (earlier != old.end() && earlier->second == found->second) continue;
    MovedCasts one{.node = &node, .operands = {}, .modules = {}};
    for (size_t i = 0; i < node.inputs.size() && i < found->second.size(); ++i) {
      const std::string& value = node.inputs[i];
      const TensorType& type = step.type_of(value);
      // A number in the code is no operand there.
      const bool is_number = value.starts_with("c:") && type.shape.empty();
      if (type.element != ElementType::kFloat || is_number) continue;
      const Format* to = found->second[i];
      const Parameter* parameter = step.parameter_of(value);
      if (parameter == nullptr) {
        one.operands.push_back(to);
      } else if (to != nullptr) {
        one.of_modules = to;
        if (std::ranges::count(one.modules, parameter->layer) == 0) {
          one.modules.push_back(parameter->layer);
        }
      }
    }
    const bool is_cast = std::ranges::any_of(one.operands, [](auto* to) { return to != nullptr; });
    if (is_cast || !one.modules.empty()) moved.push_back(std::move(one));
  }
  return moved;
}

}  // namespace lockstep
