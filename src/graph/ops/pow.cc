// pow: y = x^e, where e is the attribute `exponent` or a tensor, with C's special values.
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

FunctionParameters exponent_of(const Node& node) {
  return {double_attribute(node, "exponent", 1)};
}

std::vector<TensorType> infer_pow(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const bool is_number = node.attributes.contains("exponent");
  require(is_number == (inputs.size() == 1), node,
          "has " + std::to_string(inputs.size()) + " operands " + (is_number ? "and" : "and no") +
              " attribute 'exponent'",
          "operands x and e, or x and 'exponent'");
  exponent_of(node);  // its type is checked here
  if (is_number) return {inputs[0]};
  return {{broadcast_shape(node, inputs[0].shape, inputs[1].shape)}};
}

void pow_vjp(GradientBuilder& builder, const Node& node) {
  const std::string dy = builder.output_gradient(node);
  if (node.inputs.size() == 1) {
    builder.add_node(node, "pow_backward", {node.inputs[0], dy}, node.attributes, {0});
    return;
  }
  if (builder.needs_gradient(node, 0)) {
    add_broadcast_gradient(builder, node, 0, "pow_backward", {node.inputs[0], node.inputs[1], dy});
  }
  if (builder.needs_gradient(node, 1)) {
    add_broadcast_gradient(builder, node, 1, "pow_backward_exponent",
                           {node.inputs[0], node.inputs[1], output_id(node, 0), dy});
  }
}

void run_pow(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    if (call.inputs.size() == 2) return run_binary<T>(call, call.kernels.of<T>().power);
    call.kernels.of<T>().unary(Unary::kPower, exponent_of(call.node), input<T>(call, 0),
                               output<T>(call, 0), call.inputs[0]->size());
  });
}

// Operands x, dy with the attribute, or x, e, (y,) dy; y and dy have the shape of the result.
std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  const size_t given = node.attributes.contains("exponent") ? 1 : 2;
  const Shape shape = infer_pow(node, inputs.first(given))[0].shape;
  require_floats(node, inputs);
  for (size_t i = given; i < inputs.size(); ++i) {
    require_shape(node, inputs, i, shape, "the shape of y");
  }
  return {{shape}};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    T* dx = output<T>(call, 0);
    const T* dy = input<T>(call, call.inputs.size() - 1);
    if (call.inputs.size() == 2) {
      return call.kernels.of<T>().unary_backward(Unary::kPower, exponent_of(call.node),
                                                 input<T>(call, 0), dy, dx, call.inputs[0]->size());
    }
    OpCall operands = call;
    operands.inputs = call.inputs.first(2);
    run_binary<T>(operands, [&](const T* x, const T* e, T* out, int64_t count) {
      call.kernels.of<T>().power_backward_base(x, e, dy, out, count);
    });
  });
}

void run_backward_exponent(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    OpCall operands = call;
    operands.inputs = call.inputs.first(2);
    run_binary<T>(operands, [&](const T* x, const T* e, T* de, int64_t count) {
      call.kernels.of<T>().power_backward_exponent(x, e, input<T>(call, 2), input<T>(call, 3), de,
                                                   count);
    });
  });
}

}  // namespace

std::vector<OpDef> pow_ops() {
  return {
      {.name = "pow",
       .help = "y = x^e; e is the number `exponent` or operand 1, broadcast",
       .source = "torch.pow; CUDA autocast: fp32",
       .cast_class = CastClass::kFp32,
       .min_inputs = 1,
       .max_inputs = 2,
       .attributes = {"exponent"},
       .infer = infer_pow,
       .vjp = pow_vjp,
       .run = run_pow,
       .foreign_names = {.torch = "__pow__", .mxnet = "_power _power_scalar"}},
      {.name = "pow_backward",
       .help = "dx = dy e x^(e-1), 0 where e = 0; operands x, e?, dy",
       .source = "torch's derivative of pow",
       .cast_class = CastClass::kFp32,
       .min_inputs = 2,
       .max_inputs = 3,
       .attributes = {"exponent"},
       .infer = infer_backward,
       .run = run_backward},
      {.name = "pow_backward_exponent",
       .help = "de = dy y ln x, 0 where x = 0 and e >= 0; operands x, e, y, dy",
       .source = "torch's derivative of pow",
       .cast_class = CastClass::kFp32,
       .min_inputs = 4,
       .max_inputs = 4,
       .infer = infer_backward,
       .run = run_backward_exponent},
  };
}

}  // namespace lockstep
