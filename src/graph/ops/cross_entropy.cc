// cross_entropy of logits against class numbers, with torch's options. Probabilities as targets are
// not modelled.
#include "src/graph/ops/choice.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

// x (N,C,d1,...): the positions (N,d1,...).
Shape positions_of(const Shape& x) {
  Shape shape = x;
  shape.erase(shape.begin() + 1);
  return shape;
}

// `count`: the number of operands of the loss: x, target and, if 3, the class weights.
void require_operands(const Node& node, std::span<const TensorType> inputs, size_t count) {
  require_float(node, inputs, 0);
  require_int(node, inputs, 1);
  const Shape& x = inputs[0].shape;
  require(x.size() >= 2, node, "operand 0 is " + to_string(x) + ", must be (N,C) or (N,C,d1,...)");
  require(x[1] >= 1, node, "operand 0 is " + to_string(x) + ", must have at least one class");
  require_shape(node, inputs, 1, positions_of(x), "(N) or (N,d1,...)");
  if (count > 2) {
    require_float(node, inputs, 2);
    require_shape(node, inputs, 2, {x[1]}, "(C), the class weights");
  }
  int_attribute(node, "ignore_index", -1);  // its type is checked here
  const double smoothing = double_attribute(node, "label_smoothing", 0);
  require(smoothing >= 0 && smoothing <= 1, node,
          "attribute 'label_smoothing' is " + std::to_string(smoothing) + ", must be in [0, 1]");
}

std::vector<TensorType> infer_cross_entropy(const Node& node, std::span<const TensorType> inputs) {
  require_operands(node, inputs, inputs.size());
  return {{reduced_shape(loss_reduction(node), inputs[1].shape)}};
}

void cross_entropy_vjp(GradientBuilder& builder, const Node& node) {
  require(node.inputs.size() < 3 || !builder.needs_gradient(node, 2), node,
          "operand 2 needs a gradient, but class weights have none",
          "make it an input or a buffer");
  std::vector<std::string> operands = node.inputs;
  operands.push_back(builder.output_gradient(node));
  builder.add_node(node, "cross_entropy_backward", std::move(operands), node.attributes, {0});
}

// Checks the targets, which the kernel uses as indices. Throws: InputError.
const int32_t* checked_targets(const OpCall& call, int64_t ignore_index) {
  const int64_t classes = input_shape(call, 0)[1];
  const std::span<const int32_t> targets = call.inputs[1]->as<int32_t>();
  for (size_t i = 0; i < targets.size(); ++i) {
    if ((targets[i] >= 0 && targets[i] < classes) || targets[i] == ignore_index) continue;
    require(false, call.node,
            "target " + std::to_string(i) + " is " + std::to_string(targets[i]) +
                ", must be in [0, " + std::to_string(classes) + ") or the ignore_index " +
                std::to_string(ignore_index),
            "do the labels belong to this model's classes?");
  }
  return targets.data();
}

// `count`: the number of inputs that are operands of the loss.
template <typename T>
CrossEntropyArgs<T> arguments(const OpCall& call, size_t count) {
  const Shape& x = input_shape(call, 0);
  CrossEntropyArgs<T> args{.batch = x[0], .classes = x[1]};
  args.spatial = element_count(Shape(x.begin() + 2, x.end()));
  args.x = input<T>(call, 0);
  args.ignore_index = int_attribute(call.node, "ignore_index", args.ignore_index);
  args.target = checked_targets(call, args.ignore_index);
  if (count > 2) args.class_weight = input<T>(call, 2);
  args.label_smoothing = double_attribute(call.node, "label_smoothing", 0);
  args.reduction = loss_reduction(call.node);
  args.out = output<T>(call, 0);
  args.accumulator = &call.reduce_accumulator;
  args.log_probabilities = inner_format(call);
  return args;
}

void run_cross_entropy(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().cross_entropy(arguments<T>(call, call.inputs.size()));
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  const size_t dloss = inputs.size() - 1;
  require_operands(node, inputs, dloss);
  require_float(node, inputs, dloss);
  require_shape(node, inputs, dloss, reduced_shape(loss_reduction(node), inputs[1].shape),
                "the shape of the loss");
  return {inputs[0]};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const size_t dloss = call.inputs.size() - 1;
    CrossEntropyArgs<T> args = arguments<T>(call, dloss);
    args.dloss = input<T>(call, dloss);
    call.kernels.of<T>().cross_entropy_backward(args);
  });
}

}  // namespace

std::vector<OpDef> cross_entropy_ops() {
  const std::vector<std::string_view> attributes = {"reduction", "ignore_index", "label_smoothing"};
  return {
      {.name = "cross_entropy",
       .help =
           "logsumexp(x) - x[target] per position, weighted by the target's class, reduced (the "
           "mean divides by the weights of positions not ignored); x (N,C) or (N,C,d1,...), "
           "target (N) or (N,d1,...) integers in [0,C), class_weight? (C)",
       .source = "torch.nn.functional.cross_entropy; CUDA autocast: log_softmax with the logits' "
                 "dtype, then nll_loss in fp32",
       .cast_class = CastClass::kFp32,
       .min_inputs = 2,
       .max_inputs = 3,
       .attributes = attributes,
       .infer = infer_cross_entropy,
       .vjp = cross_entropy_vjp,
       .run = run_cross_entropy,
       .foreign_names = {.torch = "nll_loss cross_entropy_loss", .mxnet = "softmax_cross_entropy"},
       .formats = {.rounds_inside = RoundsInside::kLogits},
       .meaning = {.is_loss = true}},
      {.name = "cross_entropy_backward",
       .help = "dx = (softmax(x) - onehot(target)) dloss / N, with weights and smoothing as the "
               "loss; operands x, target, class_weight?, dloss",
       .source = "chain rule of cross_entropy",
       .cast_class = CastClass::kFp32,
       .min_inputs = 3,
       .max_inputs = 4,
       .attributes = attributes,
       .infer = infer_backward,
       .run = run_backward,
       .formats = {.rounds_inside = RoundsInside::kLogits}},
  };
}

}  // namespace lockstep
