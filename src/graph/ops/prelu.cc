// prelu: a leaky relu with learned slopes, one for all or one per channel (dimension 1).
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

int64_t channels_of(const Shape& x) {
  return x.size() >= 2 ? x[1] : 1;
}

void require_slopes(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape &x = inputs[0].shape, &w = inputs[1].shape;
  const int64_t channels = channels_of(x);
  require(w == Shape{1} || w == Shape{channels}, node,
          "operand 1 is " + to_string(w) + ", must be [1] or [" + std::to_string(channels) +
              "] = (C), where C is dimension 1 of x " + to_string(x));
}

std::vector<TensorType> infer_prelu(const Node& node, std::span<const TensorType> inputs) {
  require_slopes(node, inputs);
  return {inputs[0]};
}

// The slopes' gradient is computed element by element and then summed, as in torch; products and
// sum are each rounded.
void prelu_vjp(GradientBuilder& builder, const Node& node) {
  const std::string id = builder.add_node(
      node, "prelu_backward", {node.inputs[0], node.inputs[1], builder.output_gradient(node)}, {},
      {0, -1});
  if (!builder.needs_gradient(node, 1)) return;
  const Shape x = builder.graph().type_of(node.inputs[0]).shape;
  const Shape w = builder.graph().type_of(node.inputs[1]).shape;
  const std::string products = id + ".1";
  if (w == Shape{1} || x.size() <= 2) {
    builder.add_node(node, "sum_to", {products}, {{"shape", w}}, {1});
    return;
  }
  Shape aligned(x.size() - 1, 1);
  aligned[0] = w[0];
  const std::string sum = builder.add_node(node, "sum_to", {products}, {{"shape", aligned}}, {-1});
  builder.add_node(node, "reshape", {sum}, {{"shape", w}}, {1});
}

PreluShape prelu_shape(const OpCall& call) {
  const Shape& x = input_shape(call, 0);
  const int64_t inner = x.size() >= 2 ? element_count(Shape(x.begin() + 2, x.end())) : 1;
  return {call.inputs[0]->size(), call.inputs[1]->size(), inner};
}

void run_prelu(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().prelu(prelu_shape(call), input<T>(call, 0), input<T>(call, 1),
                               output<T>(call, 0));
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_slopes(node, inputs);
  require_shape(node, inputs, 2, inputs[0].shape, "the shape of x");
  return {inputs[0], inputs[0]};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().prelu_backward(prelu_shape(call), input<T>(call, 0), input<T>(call, 1),
                                        input<T>(call, 2), output<T>(call, 0), output<T>(call, 1));
  });
}

}  // namespace

std::vector<OpDef> prelu_ops() {
  return {
      {.name = "prelu",
       .help = "y = x where x > 0, else w x; x (N,C,...), w (C) or (1)",
       .source = "torch.nn.functional.prelu; CUDA autocast: lower_precision_fp",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 2,
       .infer = infer_prelu,
       .vjp = prelu_vjp,
       .run = run_prelu,
       .foreign_names = {.mxnet = "LeakyReLU"},
       .meaning = {.kink = positive_side}},
      {.name = "prelu_backward",
       .help = "dx = dy where x > 0, else w dy; and x dy where x <= 0, whose sum is dw; "
               "operands x, w, dy",
       .source = "chain rule of prelu",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 3,
       .max_inputs = 3,
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
