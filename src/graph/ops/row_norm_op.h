// Shared by layer_norm, rms_norm and group_norm, which differ in how x is cut into rows and in
// whether the mean is subtracted. For ops/*.cc alone.
//
//   forward   operands x, weight?, bias?               outputs y, mean (centred), inv_std
//   backward  operands x, mean (centred), inv_std, dy, weight?   outputs dx, dweight?, dbias?
#pragma once

#include "src/graph/ops/op_helpers.h"

namespace lockstep {

struct RowNormLayout {
  int64_t rows, cols, groups, spatial;  // as RowNormArgs
  Shape weight, statistics;             // of weight and bias; of mean and inv_std
};

// The meaning of a node's inner format (OpCall::inner_formats).
enum class RowNormRounds : uint8_t {
  kNothing,
  kStatistics,  // forward: RowNormArgs::statistics
  kWeightSums,  // backward: RowNormBackwardArgs::weight_sums
};

// A kind of normalisation; the attributes are those of its forward op.
struct RowNormKind {
  std::string_view backward_op;
  bool centred;
  double default_eps;
  // Throws: InputError for an x or an attribute that does not fit.
  RowNormLayout (*layout)(const Node& node, const Shape& x);
  RowNormRounds rounds = RowNormRounds::kNothing;
};

std::vector<TensorType> infer_row_norm(const RowNormKind& kind, const Node& node,
                                       std::span<const TensorType> inputs);
void row_norm_vjp(const RowNormKind& kind, GradientBuilder& builder, const Node& node);
void run_row_norm(const RowNormKind& kind, const OpCall& call);

// Attributes of the backward op: the forward's (without eps), has_weight and has_bias.
std::vector<TensorType> infer_row_norm_backward(const RowNormKind& kind, const Node& node,
                                                std::span<const TensorType> inputs);
void run_row_norm_backward(const RowNormKind& kind, const OpCall& call);

// OpFormats::on_cpu: PyTorch's CPU kernels save mean and inv_std for the backward pass in the
// format of x, unless the weight is FP32 (layer_norm_kernel.cpp, group_norm_kernel.cpp). The
// forward pass uses them unrounded.
void save_statistics_as_x(const Node& node, NodeFormats& formats);
// The same; and layer_norm's kernel adds up the gradients of its weights in the format of x.
void add_weight_gradients_in_x(const Node& node, NodeFormats& formats);
// The same; and instance_norm, which is PyTorch's batch_norm of N * C channels, uses them rounded.
void round_instance_statistics(const Node& node, NodeFormats& formats);

// The functions of the forward and the backward op of `kind`, for their OpDefs.
template <const RowNormKind& kind>
struct RowNorm {
  static std::vector<TensorType> infer(const Node& node, std::span<const TensorType> inputs) {
    return infer_row_norm(kind, node, inputs);
  }
  static void vjp(GradientBuilder& builder, const Node& node) { row_norm_vjp(kind, builder, node); }
  static void run(const OpCall& call) { run_row_norm(kind, call); }
  static std::vector<TensorType> infer_backward(const Node& node,
                                                std::span<const TensorType> inputs) {
    return infer_row_norm_backward(kind, node, inputs);
  }
  static void run_backward(const OpCall& call) { run_row_norm_backward(kind, call); }
};

// Layout of the ops that normalise over the last `normalized_ndim` dimensions.
RowNormLayout last_dims_layout(const Node& node, const Shape& x);

}  // namespace lockstep
