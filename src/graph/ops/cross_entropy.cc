// cross_entropy: the mean over rows of logsumexp(x) - x[target], torch's default reduction.
// Class weights, ignore_index and label smoothing are not modelled.
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

void require_logits(const Node& node, std::span<const TensorType> inputs) {
  require_float(node, inputs, 0);
  require_int(node, inputs, 1);
  require_rank(node, inputs, 0, 2, "(N,C)");
  require_shape(node, inputs, 1, {inputs[0].shape[0]}, "(N)");
}

std::vector<TensorType> infer_cross_entropy(const Node& node, std::span<const TensorType> inputs) {
  require_logits(node, inputs);
  return {{}};
}

void cross_entropy_vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "cross_entropy_backward",
                   {node.inputs[0], node.inputs[1], builder.output_gradient(node)}, {}, {0});
}

// The kernel indexes with the targets: they are checked here. Throws: InputError.
const int32_t* checked_targets(const OpCall& call) {
  const int64_t classes = input_shape(call, 0)[1];
  const std::span<const int32_t> targets = call.inputs[1]->as<int32_t>();
  for (size_t i = 0; i < targets.size(); ++i) {
    require(targets[i] >= 0 && targets[i] < classes, call.node,
            "target " + std::to_string(i) + " is " + std::to_string(targets[i]) +
                ", must be in [0, " + std::to_string(classes) + ")",
            "are the labels those of this model's classes?");
  }
  return targets.data();
}

void run_cross_entropy(const OpCall& call) {
  const int32_t* target = checked_targets(call);
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().cross_entropy(input<T>(call, 0), target, output<T>(call, 0),
                                       input_shape(call, 0)[0], input_shape(call, 0)[1],
                                       call.reduce_accumulator);
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_logits(node, inputs);
  require_float(node, inputs, 2);
  require_shape(node, inputs, 2, {}, "a scalar, the gradient of the loss");
  return {inputs[0]};
}

void run_backward(const OpCall& call) {
  const int32_t* target = checked_targets(call);
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().cross_entropy_backward(input<T>(call, 0), target, *input<T>(call, 2),
                                                output<T>(call, 0), input_shape(call, 0)[0],
                                                input_shape(call, 0)[1], call.reduce_accumulator);
  });
}

}  // namespace

std::vector<OpDef> cross_entropy_ops() {
  return {
      {.name = "cross_entropy",
       .help = "mean over rows of logsumexp(x) - x[target]; x (N,C), target (N) integers in [0,C)",
       .source = "torch.nn.functional.cross_entropy; CUDA autocast: log_softmax and nll_loss, both "
                 "fp32",
       .cast_class = CastClass::kFp32,
       .min_inputs = 2,
       .max_inputs = 2,
       .infer = infer_cross_entropy,
       .vjp = cross_entropy_vjp,
       .run = run_cross_entropy},
      {.name = "cross_entropy_backward",
       .help = "dx = (softmax(x) - onehot(target)) dloss / N; operands x, target, dloss",
       .source = "chain rule of cross_entropy",
       .cast_class = CastClass::kFp32,
       .min_inputs = 3,
       .max_inputs = 3,
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
