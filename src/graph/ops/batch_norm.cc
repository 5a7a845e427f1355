// batch_norm: y = (x - mean) / sqrt(var + eps) * w + b per channel, with batch or running
// statistics. Operands x (N,C,...), [weight, bias,] running_mean, running_var (all (C)), and
// [num_batches_tracked], an integer. Outputs y, new running_mean, new running_var, the mean and the
// 1/sqrt(var + eps) of this call, and [new num_batches_tracked].
#include <limits>

#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

constexpr double kTorchMomentum = 0.1;
constexpr double kTorchEps = 1e-5;

struct ChannelShape {
  int64_t batch, channels, spatial;
};
ChannelShape channel_shape(const Shape& x) {
  return {x[0], x[1], element_count(x) / (x[0] * x[1])};
}

bool is_affine(const Node& node) {
  return bool_attribute(node, "affine", true);
}
// Operand of running_mean; running_var and num_batches_tracked come after it.
size_t first_buffer(const Node& node) {
  return is_affine(node) ? 3 : 1;
}
size_t count_operand(const Node& node) {
  return first_buffer(node) + 2;
}
bool counts_batches(const Node& node) {
  return node.inputs.size() > count_operand(node);
}

std::vector<int> follows(const Node& node) {
  const int mean = static_cast<int>(first_buffer(node));
  return {kFollowsOutput0, mean, mean + 1, kFollowsAccumulator, kFollowsAccumulator};
}

std::vector<TensorType> infer_batch_norm(const Node& node, std::span<const TensorType> inputs) {
  const size_t floats = count_operand(node);
  require(inputs.size() == floats || inputs.size() == floats + 1, node,
          "has " + std::to_string(inputs.size()) + " operands, must have " +
              std::to_string(floats) + " or, with num_batches_tracked, " +
              std::to_string(floats + 1),
          is_affine(node) ? "without weight and bias: attribute 'affine' false" : "");
  for (size_t i = 0; i < floats; ++i) require_float(node, inputs, i);
  const Shape& x = inputs[0].shape;
  require_channels(node, x);
  const Shape per_channel = {x[1]};
  for (size_t i = 1; i < floats; ++i) require_shape(node, inputs, i, per_channel, "(channels)");
  const bool counts = inputs.size() > floats;
  if (counts) {
    require_int(node, inputs, floats);
    require_shape(node, inputs, floats, {}, "(), num_batches_tracked");
  }
  const bool cumulative = bool_attribute(node, "cumulative", false);
  require(!cumulative || counts, node,
          "attribute 'cumulative' averages over all batches, which needs num_batches_tracked",
          "give it as operand " + std::to_string(floats));
  require(!cumulative || !node.attributes.contains("momentum"), node,
          "has attributes 'cumulative' and 'momentum', must have only one of them");
  const bool training = bool_attribute(node, "training", true);
  const double momentum = double_attribute(node, "momentum", kTorchMomentum);
  const double eps = double_attribute(node, "eps", kTorchEps);
  require(momentum >= 0 && momentum <= 1, node,
          "attribute 'momentum' is " + std::to_string(momentum) + ", must be in [0, 1]");
  require(eps > 0, node, "attribute 'eps' must be greater than 0");
  // The unbiased running variance divides by n - 1.
  require(!training || element_count(x) / x[1] > 1, node,
          "training needs more than one value per channel, operand 0 is " + to_string(x));
  std::vector<TensorType> outputs = {
      {x}, {per_channel}, {per_channel}, {per_channel}, {per_channel}};
  if (counts) outputs.push_back({{}, ElementType::kInt});
  return outputs;
}

// OpFormats::on_cpu: PyTorch's CPU kernel computes the statistics of a batch in the format of x
// (running ones are read as they are), unless a weight or buffer is FP32
// (aten/src/ATen/native/Normalization.cpp, is_mixed_type). Its formula is in norm_args.h.
void round_statistics(const Node& node, NodeFormats& formats) {
  formats.inner = {&find_format("fp32")};
  const Format* x = formats.operands[0] != nullptr ? formats.operands[0] : formats.stored[0];
  if (!bool_attribute(node, "training", true) || contains(*x, find_format("fp32"))) return;
  for (size_t i = 1; i < count_operand(node); ++i) {
    const bool is_absent = node.inputs[i].starts_with("c:");  // in PyTorch
    const Format* read = formats.operands[i] != nullptr ? formats.operands[i] : formats.stored[i];
    if (!is_absent && read != x) return;
  }
  formats.outputs[3] = formats.outputs[4] = x;
  formats.inner = {x};
}

void batch_norm_vjp(GradientBuilder& builder, const Node& node) {
  std::vector<std::string> operands = {node.inputs[0], output_id(node, 3), output_id(node, 4),
                                       builder.output_gradient(node)};
  Attributes attributes = {{"training", bool_attribute(node, "training", true)}};
  std::vector<int> gradients = {0};
  if (is_affine(node)) {
    operands.insert(operands.begin() + 1, node.inputs[1]);
    gradients = {0, 1, 2};
  } else {
    attributes["affine"] = false;
  }
  builder.add_node(node, "batch_norm_backward", std::move(operands), std::move(attributes),
                   std::move(gradients));
}

// Counts this batch and returns the weight of its statistics in the running ones: `momentum`, or
// one over the number of batches so far, so that all batches weigh the same.
double take_batch(const OpCall& call) {
  const double momentum = double_attribute(call.node, "momentum", kTorchMomentum);
  if (!counts_batches(call.node)) return momentum;
  const int32_t before = *input<int32_t>(call, count_operand(call.node));
  const bool training = bool_attribute(call.node, "training", true);
  require(!training || (before >= 0 && before < std::numeric_limits<int32_t>::max()), call.node,
          "num_batches_tracked is " + std::to_string(before) + ", must be 0 to 2^31 - 2");
  const int32_t now = before + (training ? 1 : 0);
  *output<int32_t>(call, 5) = now;
  return training && bool_attribute(call.node, "cumulative", false) ? 1.0 / now : momentum;
}

void run_batch_norm(const OpCall& call) {
  const double momentum = take_batch(call);
  dispatch(call, [&]<typename T>(T*) {
    const ChannelShape s = channel_shape(input_shape(call, 0));
    BatchNormArgs<T> args{};
    args.batch = s.batch, args.channels = s.channels, args.spatial = s.spatial;
    args.eps = double_attribute(call.node, "eps", kTorchEps);
    args.momentum = momentum;
    args.training = bool_attribute(call.node, "training", true);
    args.x = input<T>(call, 0);
    if (is_affine(call.node)) args.weight = input<T>(call, 1), args.bias = input<T>(call, 2);
    const size_t buffers = first_buffer(call.node);
    args.running_mean = input<T>(call, buffers), args.running_var = input<T>(call, buffers + 1);
    args.y = output<T>(call, 0);
    args.new_running_mean = output<T>(call, 1), args.new_running_var = output<T>(call, 2);
    args.mean = output<T>(call, 3), args.inv_std = output<T>(call, 4);
    args.accumulator = &call.reduce_accumulator;
    args.statistics = inner_format(call);
    call.kernels.of<T>().batch_norm(args);
  });
}

// Operands x, [w,] mean, inv_std, dy.
std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  const size_t dy = is_affine(node) ? 4 : 3;
  require_operand_count(node, inputs, dy + 1);
  require_floats(node, inputs);
  const Shape& x = inputs[0].shape;
  require_channels(node, x);
  for (size_t i = 1; i < dy; ++i) require_shape(node, inputs, i, {x[1]}, "(channels)");
  require_shape(node, inputs, dy, x, "the shape of x");
  bool_attribute(node, "training", true);
  if (!is_affine(node)) return {{x}};
  return {{x}, {{x[1]}}, {{x[1]}}};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const ChannelShape s = channel_shape(input_shape(call, 0));
    BatchNormBackwardArgs<T> args{};
    args.batch = s.batch, args.channels = s.channels, args.spatial = s.spatial;
    args.training = bool_attribute(call.node, "training", true);
    const bool affine = is_affine(call.node);
    const size_t mean = affine ? 2 : 1;
    args.x = input<T>(call, 0), args.mean = input<T>(call, mean);
    args.inv_std = input<T>(call, mean + 1), args.dy = input<T>(call, mean + 2);
    args.dx = output<T>(call, 0);
    if (affine) {
      args.weight = input<T>(call, 1);
      args.dweight = output<T>(call, 1), args.dbias = output<T>(call, 2);
    }
    args.accumulator = &call.reduce_accumulator;
    call.kernels.of<T>().batch_norm_backward(args);
  });
}

}  // namespace

std::vector<OpDef> batch_norm_ops() {
  return {
      {.name = "batch_norm",
       .help =
           "y = (x - mean) inv_std w + b per channel; x (N,C,...); training: batch statistics, "
           "else running ones; other outputs: new running statistics, mean, inv_std; affine "
           "false: no w, b; the optional integer operand num_batches_tracked is counted up and is "
           "the last output; cumulative: momentum is one over it (torch's momentum=None)",
       .source = "S. Ioffe, C. Szegedy, ICML 2015; torch.nn.functional.batch_norm; CUDA autocast: "
                 "not listed, output in the type of x",
       .min_inputs = 3,
       .max_inputs = 6,
       .attributes = {"training", "momentum", "eps", "affine", "cumulative"},
       .infer = infer_batch_norm,
       .vjp = batch_norm_vjp,
       .run = run_batch_norm,
       .foreign_names = {.torch = "native_batch_norm cudnn_batch_norm", .mxnet = "BatchNorm"},
       .formats = {.follow_operands = {0}, .node_follows = follows, .on_cpu = round_statistics},
       .meaning = {.has_running_statistics = true, .first_values = FirstValues::kScaleShift}},
      {.name = "batch_norm_backward",
       .help = "dx, dw, db of batch_norm; operands x, w, mean, inv_std, dy; no w, dw, db if "
               "affine is false",
       .source = "chain rule of batch_norm, through the batch statistics when training",
       .min_inputs = 4,
       .max_inputs = 5,
       .attributes = {"training", "affine"},
       .infer = infer_backward,
       .run = run_backward,
       .formats = {.follow_operands = {0}, .output_follows = {kFollowsOutput0, 1, 1}}},
  };
}

}  // namespace lockstep
