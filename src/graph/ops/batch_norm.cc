// batch_norm: y = (x - mean) / sqrt(var + eps) * w + b per channel, with batch or running
// statistics. Operands x (N,C,...), weight, bias, running_mean, running_var (all (C)). Outputs y,
// new running_mean, new running_var, and the mean and 1/sqrt(var + eps) that were used.
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

std::vector<TensorType> infer_batch_norm(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape& x = inputs[0].shape;
  require(x.size() >= 2, node, "operand 0 is " + to_string(x) + ", must be (N,C,...)");
  const Shape per_channel = {x[1]};
  for (size_t i = 1; i < inputs.size(); ++i) {
    require_shape(node, inputs, i, per_channel, "(channels)");
  }
  const bool training = bool_attribute(node, "training", true);
  const double momentum = double_attribute(node, "momentum", kTorchMomentum);
  const double eps = double_attribute(node, "eps", kTorchEps);
  require(momentum >= 0 && momentum <= 1, node,
          "attribute 'momentum' is " + std::to_string(momentum) + ", must be in [0, 1]");
  require(eps > 0, node, "attribute 'eps' must be greater than 0");
  // The unbiased running variance divides by n - 1.
  require(!training || element_count(x) / x[1] > 1, node,
          "training needs more than one value per channel, operand 0 is " + to_string(x));
  return {{x}, {per_channel}, {per_channel}, {per_channel}, {per_channel}};
}

void batch_norm_vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "batch_norm_backward",
                   {node.inputs[0], node.inputs[1], output_id(node, 3), output_id(node, 4),
                    builder.output_gradient(node)},
                   {{"training", bool_attribute(node, "training", true)}}, {0, 1, 2});
}

void run_batch_norm(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const ChannelShape s = channel_shape(input_shape(call, 0));
    BatchNormArgs<T> args{};
    args.batch = s.batch, args.channels = s.channels, args.spatial = s.spatial;
    args.eps = double_attribute(call.node, "eps", kTorchEps);
    args.momentum = double_attribute(call.node, "momentum", kTorchMomentum);
    args.training = bool_attribute(call.node, "training", true);
    args.x = input<T>(call, 0), args.weight = input<T>(call, 1), args.bias = input<T>(call, 2);
    args.running_mean = input<T>(call, 3), args.running_var = input<T>(call, 4);
    args.y = output<T>(call, 0);
    args.new_running_mean = output<T>(call, 1), args.new_running_var = output<T>(call, 2);
    args.mean = output<T>(call, 3), args.inv_std = output<T>(call, 4);
    args.accumulator = &call.reduce_accumulator;
    call.kernels.of<T>().batch_norm(args);
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape& x = inputs[0].shape;
  require(x.size() >= 2, node, "operand 0 is " + to_string(x) + ", must be (N,C,...)");
  for (size_t i = 1; i <= 3; ++i) require_shape(node, inputs, i, {x[1]}, "(channels)");
  require_shape(node, inputs, 4, x, "the shape of x");
  bool_attribute(node, "training", true);
  return {{x}, {{x[1]}}, {{x[1]}}};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const ChannelShape s = channel_shape(input_shape(call, 0));
    BatchNormBackwardArgs<T> args{};
    args.batch = s.batch, args.channels = s.channels, args.spatial = s.spatial;
    args.training = bool_attribute(call.node, "training", true);
    args.x = input<T>(call, 0), args.weight = input<T>(call, 1);
    args.mean = input<T>(call, 2), args.inv_std = input<T>(call, 3), args.dy = input<T>(call, 4);
    args.dx = output<T>(call, 0), args.dweight = output<T>(call, 1);
    args.dbias = output<T>(call, 2);
    args.accumulator = &call.reduce_accumulator;
    call.kernels.of<T>().batch_norm_backward(args);
  });
}

}  // namespace

std::vector<OpDef> batch_norm_ops() {
  return {
      {.name = "batch_norm",
       .help = "y = (x - mean) inv_std w + b per channel; x (N,C,...); training: batch statistics, "
               "else running ones; also gives the new running statistics, mean and inv_std",
       .source = "S. Ioffe, C. Szegedy, ICML 2015; torch.nn.functional.batch_norm; CUDA autocast: "
                 "not listed, output in the type of x",
       .min_inputs = 5,
       .max_inputs = 5,
       .follow_operands = {0},
       .output_follows = {-1, 3, 4, -2, -2},
       .attributes = {"training", "momentum", "eps"},
       .infer = infer_batch_norm,
       .vjp = batch_norm_vjp,
       .run = run_batch_norm},
      {.name = "batch_norm_backward",
       .help = "dx, dw, db of batch_norm; operands x, w, mean, inv_std, dy",
       .source = "chain rule of batch_norm, through the batch statistics when training",
       .min_inputs = 5,
       .max_inputs = 5,
       .follow_operands = {0},
       .output_follows = {-1, 1, 1},
       .attributes = {"training"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
