// See row_norm_op.h.
#include "src/graph/ops/row_norm_op.h"

namespace lockstep {

RowNormLayout last_dims_layout(const Node& node, const Shape& x) {
  const int64_t ndim = int_attribute(node, "normalized_ndim", 1);
  const auto rank = static_cast<int64_t>(x.size());
  require(ndim >= 1 && ndim <= rank, node,
          "attribute 'normalized_ndim' is " + std::to_string(ndim) + ", must be in [1, " +
              std::to_string(rank) + "], the dimensions of operand 0 " + to_string(x));
  RowNormLayout layout{};
  layout.statistics.assign(x.begin(), x.end() - ndim);
  layout.weight.assign(x.end() - ndim, x.end());
  layout.rows = element_count(layout.statistics);
  layout.cols = element_count(layout.weight);
  layout.groups = layout.spatial = 1;
  return layout;
}

std::vector<TensorType> infer_row_norm(const RowNormKind& kind, const Node& node,
                                       std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const RowNormLayout layout = kind.layout(node, inputs[0].shape);
  const double eps = double_attribute(node, "eps", kind.default_eps);
  require(eps >= 0, node, "attribute 'eps' is " + std::to_string(eps) + ", must not be negative");
  for (size_t i = 1; i < inputs.size(); ++i) {
    require_shape(node, inputs, i, layout.weight, "one per normalised element or channel");
  }
  std::vector<TensorType> outputs = {{inputs[0].shape}, {layout.statistics}};
  if (kind.centred) outputs.push_back({layout.statistics});
  return outputs;
}

void row_norm_vjp(const RowNormKind& kind, GradientBuilder& builder, const Node& node) {
  const bool has_weight = node.inputs.size() > 1, has_bias = node.inputs.size() > 2;
  std::vector<std::string> inputs = {node.inputs[0], output_id(node, 1)};
  if (kind.centred) inputs.push_back(output_id(node, 2));
  inputs.push_back(builder.output_gradient(node));
  std::vector<int> gradients = {0};
  if (has_weight) {
    inputs.push_back(node.inputs[1]);
    gradients.push_back(1);
  }
  if (has_bias) gradients.push_back(2);
  Attributes attributes = node.attributes;
  attributes.erase("eps");
  attributes["has_weight"] = has_weight;
  attributes["has_bias"] = has_bias;
  builder.add_node(node, kind.backward_op, inputs, attributes, gradients);
}

void save_statistics_as_x(const Node& node, NodeFormats& formats) {
  const auto read_in = [&](size_t i) {
    return formats.operands[i] != nullptr ? formats.operands[i] : formats.stored[i];
  };
  const Format* x = read_in(0);
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    if (read_in(i) != x) return;
  }
  for (size_t k = 1; k < formats.outputs.size(); ++k) formats.outputs[k] = x;
}

void add_weight_gradients_in_x(const Node& node, NodeFormats& formats) {
  save_statistics_as_x(node, formats);
  const Format* x = formats.operands[0] != nullptr ? formats.operands[0] : formats.stored[0];
  if (!contains(*x, find_format("fp32"))) formats.inner = {x};
}

void round_instance_statistics(const Node& node, NodeFormats& formats) {
  save_statistics_as_x(node, formats);
  if (!node.torch_op.starts_with("aten.instance_norm") || formats.outputs[1] == nullptr) return;
  if (!contains(*formats.outputs[1], find_format("fp32"))) formats.inner = {formats.outputs[1]};
}

void run_row_norm(const RowNormKind& kind, const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const RowNormLayout layout = kind.layout(call.node, input_shape(call, 0));
    RowNormArgs<T> args{};
    args.rows = layout.rows, args.cols = layout.cols;
    args.groups = layout.groups, args.spatial = layout.spatial;
    args.eps = double_attribute(call.node, "eps", kind.default_eps);
    args.centred = kind.centred;
    args.x = input<T>(call, 0);
    if (call.inputs.size() > 1) args.weight = input<T>(call, 1);
    if (call.inputs.size() > 2) args.bias = input<T>(call, 2);
    args.y = output<T>(call, 0);
    if (kind.centred) args.mean = output<T>(call, 1);
    args.inv_std = output<T>(call, kind.centred ? 2 : 1);
    args.accumulator = &call.reduce_accumulator;
    if (kind.rounds == RowNormRounds::kStatistics) args.statistics = inner_format(call);
    call.kernels.of<T>().row_norm(args);
  });
}

std::vector<TensorType> infer_row_norm_backward(const RowNormKind& kind, const Node& node,
                                                std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape& x = inputs[0].shape;
  const RowNormLayout layout = kind.layout(node, x);
  const bool has_weight = bool_attribute(node, "has_weight", false);
  const size_t statistics = kind.centred ? 2 : 1;
  require_operand_count(node, inputs, 2 + statistics + (has_weight ? 1 : 0));
  for (size_t i = 1; i <= statistics; ++i) {
    require_shape(node, inputs, i, layout.statistics, "one per row");
  }
  require_shape(node, inputs, statistics + 1, x, "the shape of x");
  std::vector<TensorType> outputs = {{x}};
  if (has_weight) {
    require_shape(node, inputs, statistics + 2, layout.weight, "one per element or channel");
    outputs.push_back({layout.weight});
  }
  if (bool_attribute(node, "has_bias", false)) outputs.push_back({layout.weight});
  return outputs;
}

void run_row_norm_backward(const RowNormKind& kind, const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const RowNormLayout layout = kind.layout(call.node, input_shape(call, 0));
    const bool has_weight = bool_attribute(call.node, "has_weight", false);
    const bool has_bias = bool_attribute(call.node, "has_bias", false);
    const size_t inv_std = kind.centred ? 2 : 1;
    RowNormBackwardArgs<T> args{};
    args.rows = layout.rows, args.cols = layout.cols;
    args.groups = layout.groups, args.spatial = layout.spatial;
    args.centred = kind.centred;
    args.x = input<T>(call, 0), args.dy = input<T>(call, inv_std + 1);
    if (kind.centred) args.mean = input<T>(call, 1);
    args.inv_std = input<T>(call, inv_std);
    if (has_weight) args.weight = input<T>(call, inv_std + 2);
    args.dx = output<T>(call, 0);
    if (has_weight) args.dweight = output<T>(call, 1);
    if (has_bias) args.dbias = output<T>(call, has_weight ? 2 : 1);
    args.accumulator = &call.reduce_accumulator;
    if (kind.rounds == RowNormRounds::kWeightSums) args.weight_sums = inner_format(call);
    args.weight_parts = call.cpu_threads;
    call.kernels.of<T>().row_norm_backward(args);
  });
}

}  // namespace lockstep
