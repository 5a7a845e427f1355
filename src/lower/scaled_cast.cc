// Names, formats and block shapes of scaled casts.
#include "src/lower/scaled_cast.h"

#include <algorithm>

#include "src/core/text.h"
#include "src/graph/infer.h"
#include "src/graph/op.h"

namespace lockstep {

std::string ScaledCast::text() const {
  if (to.block == nullptr) {
    return kind == ScalingKind::kUnit ? "unscaled" : std::string(to_string(kind)) + " scale";
  }
  const std::string size = std::to_string(to.block->block_size);
  if (to.square) return size + "x" + size + " blocks";
  return "blocks of " + size + (shape.axis == 1 ? " along rows" : " down columns");
}

std::optional<ScaledCast> ScaledOperands::cast_of(const Node& node, size_t operand,
                                                  const std::string& forward_op) {
  const FactorScaling& scaling = policy_.scaling;
  if (scaling.kind == ScalingKind::kNone ||
      std::find(scaling.ops.begin(), scaling.ops.end(), forward_op) == scaling.ops.end()) {
    return std::nullopt;
  }
  used_ = true;
  const std::string& id = node.inputs[operand];
  ScaledCast cast;
  cast.kind = scaling.kind;
  cast.to = is_gradient(graph_, id)              ? scaling.gradient
            : graph_.parameter_of(id) != nullptr ? scaling.weight
                                                 : scaling.activation;
  if (cast.to.block != nullptr) {
    const Shape shape = graph_.type_of(id).shape;
    cast.shape.cols = shape.back();
    cast.shape.rows = element_count(shape) / std::max<int64_t>(1, shape.back());
    cast.shape.axis = find_op(node.op).sums.axes.at(operand);
  }
  const std::string base = layer_of(graph_, node) + "." + node.op + "." + std::to_string(operand);
  const int earlier = names_[base]++;
  cast.name = earlier == 0 ? base : base + "#" + std::to_string(earlier + 1);
  return cast;
}

void ScaledOperands::report_unused(ProblemList& problems) const {
  if (policy_.scaling.kind == ScalingKind::kNone || used_) return;
  problems.add(
      "[scaling] ops: the model has no " + join(policy_.scaling.ops, ", ") + ": nothing is scaled",
      "`lockstep explain` lists the model's ops");
}

}  // namespace lockstep
