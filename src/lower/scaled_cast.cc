// Names, formats and block shapes of scaled casts.
#include "src/lower/scaled_cast.h"

#include <algorithm>

#include "emulation/format/whole_line.h"
#include "src/core/text.h"
#include "src/graph/infer.h"
#include "src/graph/op.h"

namespace lockstep {

namespace {

// Which of an op's three products this node computes.
Product product_of(const Graph& graph, const Node& node) {
  if (!node.is_backward()) return Product::kFprop;
  const std::string& first = graph.node(node.forward_node).inputs.at(0);
  return std::ranges::count(node.inputs, first) > 0 ? Product::kWgrad : Product::kDgrad;
}

}  // namespace

std::string ScaledCast::text() const {
  const std::string transform = rotates ? "after a Hadamard transform, " : "";
  if (to.block == nullptr) {
    return transform +
           (kind == ScalingKind::kUnit ? "unscaled" : std::string(to_string(kind)) + " scale");
  }
  if (to.block->block_size == kWholeLine) {
    return transform + (to.square         ? "one scale"
                        : shape.axis == 1 ? "a scale per row"
                                          : "a scale per column");
  }
  const std::string size = std::to_string(to.block->block_size);
  if (to.square) return transform + size + "x" + size + " blocks";
  return transform + "blocks of " + size + (shape.axis == 1 ? " along rows" : " down columns");
}

std::optional<ScaledCast> ScaledOperands::cast_of(const Node& node, size_t operand,
                                                  const std::string& forward_op) {
  const FactorScaling& scaling = policy_.scaling;
  if (scaling.kind == ScalingKind::kNone ||
      std::find(scaling.ops.begin(), scaling.ops.end(), forward_op) == scaling.ops.end()) {
    return std::nullopt;
  }
  used_ = true;
  const Product product = product_of(graph_, node);
  if (!scaling.of(product).is_scaled) return std::nullopt;
  const std::string& id = node.inputs[operand];
  ScaledCast cast;
  cast.kind = scaling.kind;
  cast.to = scaling.factor(product, is_gradient(graph_, id)              ? FactorRole::kGradient
                                    : graph_.parameter_of(id) != nullptr ? FactorRole::kWeight
                                                                         : FactorRole::kActivation);
  cast.rotates = scaling.of(product).rotates;
  if (cast.to.block != nullptr || cast.rotates) {
    const Shape shape = graph_.type_of(id).shape;
    cast.shape.cols = shape.back();
    cast.shape.rows = element_count(shape) / std::max<int64_t>(1, shape.back());
    cast.shape.axis = find_op(node.op).sums.axes.at(operand);
  }
  if (cast.rotates && cast.shape.along() % kHadamardSize != 0) {
    shape_problems_.push_back(layer_of(graph_, node) + " " + node.op + " sums " +
                              std::to_string(cast.shape.along()) + " products");
  }
  const std::string base = layer_of(graph_, node) + "." + node.op + "." + std::to_string(operand);
  const int earlier = names_[base]++;
  cast.name = earlier == 0 ? base : base + "#" + std::to_string(earlier + 1);
  return cast;
}

void ScaledOperands::report_shapes(ProblemList& problems) const {
  for (const std::string& problem : shape_problems_) {
    problems.add("[scaling] hadamard: " + problem + ", must be a multiple of 16",
                 "the transform runs on groups of 16 along the sum; for wgrad the rows of x count");
  }
}

void ScaledOperands::report_unused(ProblemList& problems) const {
  if (policy_.scaling.kind == ScalingKind::kNone || used_) return;
  problems.add(
      "[scaling] ops: the model has no " + join(policy_.scaling.ops, ", ") + ": nothing is scaled",
      "`lockstep explain` lists the model's ops");
}

}  // namespace lockstep
