// If all addends arrive in the format of one shared cast, they are summed in it.
#include "src/lower/gradient_join.h"

#include <algorithm>

namespace lockstep {
namespace {

const Format* format_of_sum(const Node& join, const LowerInputs& in, const ModelBorder& border,
                            const ProgramBuilder& builder) {
  const std::string& of = join.gradient_of.front();
  const bool is_cached = in.graph.parameter_of(of) != nullptr && in.policy.weight_cache;
  if (is_cached || border.is_crossed_by(of)) {
    const Format* shared = builder.stored_format(join.inputs.front());
    const bool all_alike = std::ranges::all_of(
        join.inputs, [&](const std::string& id) { return builder.stored_format(id) == shared; });
    if (all_alike) return shared;
  }
  return builder.stored_format(of);
}

}  // namespace

bool is_join(const Graph& graph, const Node& node) {
  return node.is_backward() && find_op(node.op).meaning.is_sum && !node.gradient_of.empty() &&
         !node.gradient_of.front().empty() &&
         std::ranges::all_of(node.inputs,
                             [&](const std::string& id) { return is_gradient(graph, id); });
}

void lower_join(const Node& join, const LowerInputs& in, const ModelBorder& border,
                const ProgramBuilder& builder, LayerScales& scales, OpLowering& ops) {
  const OpDef& op = find_op(join.op);
  const Format* sum = format_of_sum(join, in, border, builder);
  const double scale = scales.of_join(join);
  std::vector<int> inputs;
  for (size_t i = 0; i < join.inputs.size(); ++i) {
    const int value = scales.scaled(join.inputs[i], scale);
    inputs.push_back(ops.read(join, op, i, {value, value, sum}, /*compute=*/nullptr).value);
  }
  ops.add(join, op, std::move(inputs), {.outputs = {sum}});
  scales.set_backward(join, scale);
}

}  // namespace lockstep
