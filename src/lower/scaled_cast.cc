// Names, formats and block shapes of scaled casts.
#include "src/lower/scaled_cast.h"

#include <algorithm>

#include "emulation/format/whole_line.h"
#include "src/core/random.h"
#include "src/core/text.h"
#include "src/core/text_hash.h"
#include "src/graph/infer.h"
#include "src/graph/op.h"
#include "src/lower/product_of_node.h"

namespace lockstep {

namespace {

// Drawn once for a layer, so that both factors have the same in every step. Source: torchao,
// nvfp4_training: each layer keeps its own vector of random signs.
uint16_t drawn_signs(uint64_t seed, std::string_view layer) {
  const RandomStream stream(seed, RandomPurpose::kHadamardSigns);
  return static_cast<uint16_t>(stream.four(fnv1a(layer))[0]);
}

// Whether the product's sums are formed block by block.
bool sums_by_blocks(const FactorScaling& scaling, Product product) {
  return scaling.kind == ScalingKind::kBlock &&
         (scaling.of(product).accumulator != nullptr || scaling.activation.fp32_scale);
}

}  // namespace

std::string ScaledCast::text() const {
  const std::string transform = rotates() ? "after a Hadamard transform, " : "";
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

bool ScaledOperands::is_scaled_op(const std::string& forward_op) const {
  const FactorScaling& scaling = policy_.scaling;
  return scaling.kind != ScalingKind::kNone &&
         std::ranges::find(scaling.ops, forward_op) != scaling.ops.end();
}

const Accumulator* ScaledOperands::accumulator_of(const Node& node,
                                                  const std::string& forward_op) const {
  if (!is_scaled_op(forward_op)) return nullptr;
  const ProductScaling& product = policy_.scaling.of(product_of(graph_, node));
  return product.is_scaled ? product.accumulator : nullptr;
}

std::optional<ScaledCast> ScaledOperands::cast_of(const Node& node, size_t operand,
                                                  const std::string& forward_op) {
  const FactorScaling& scaling = policy_.scaling;
  if (!is_scaled_op(forward_op)) return std::nullopt;
  used_ = true;
  const Product product = product_of(graph_, node);
  if (!scaling.of(product).is_scaled) return std::nullopt;
  const std::string& id = node.inputs[operand];
  ScaledCast cast;
  cast.kind = scaling.kind;
  cast.to = scaling.factor(product, is_gradient(graph_, id)              ? FactorRole::kGradient
                                    : graph_.parameter_of(id) != nullptr ? FactorRole::kWeight
                                                                         : FactorRole::kActivation);
  // Hardware sums the codes; the scale of a whole line multiplies the result.
  const bool is_line = cast.to.block != nullptr && cast.to.block->block_size == kWholeLine;
  cast.keeps_scales = sums_by_blocks(scaling, product) || (is_line && policy_.hardware != nullptr);
  cast.hadamard = scaling.of(product).hadamard;
  if (cast.hadamard == Hadamard::kFixed) cast.signs = kFixedHadamardSigns;
  if (cast.hadamard == Hadamard::kDrawn) {
    cast.signs = drawn_signs(scaling.hadamard_seed, layer_of(graph_, node));
  }
  if (cast.to.block != nullptr || cast.rotates()) {
    const Shape shape = graph_.type_of(id).shape;
    cast.shape.cols = shape.back();
    cast.shape.rows = element_count(shape) / std::max<int64_t>(1, shape.back());
    cast.shape.axis = find_op(node.op).sums.axes.at(operand);
  }
  if (cast.rotates() && cast.shape.along() % kHadamardSize != 0) {
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
  const auto is_scaled = [&](const Node& node) { return is_scaled_op(node.op); };
  if (std::ranges::any_of(graph_.nodes, is_scaled)) {
    problems.add("[scaling]: rules exclude every " + join(policy_.scaling.ops, ", ") +
                     " of the model: nothing is scaled",
                 "a model of few layers may have no layer besides its head and the blocks that "
                 "rules keep wide");
    return;
  }
  problems.add(
      "[scaling] ops: the model has no " + join(policy_.scaling.ops, ", ") + ": nothing is scaled",
      "`lockstep explain` lists the model's ops");
}

}  // namespace lockstep
