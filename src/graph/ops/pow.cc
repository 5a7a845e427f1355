// pow: y = x^e, where e is the attribute `exponent` or a tensor, with C's special values.
// PyTorch reads the number in the format of the tensor, and multiplies in it for the exponents 3
// and -2 (PowKernel.cu; ATen's vectors on the CPU), and its derivative is three kernels, dy (e
// x^(e-1)). In a narrow format every part is rounded.
#include <algorithm>
#include <vector>

#include "emulation/format/rounding.h"
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

template <typename T>
void round_inside(const OpCall& call, T* values, int64_t count) {
  call.kernels.of<T>().quantize(values, values, count, {inner_format(call)}, nullptr);
}

// x^e as PyTorch forms it, up to the last rounding, which is not done here.
template <typename T>
void torch_power(const OpCall& call, double number, const T* x, T* y, int64_t count) {
  const Kernels<T>& kernels = call.kernels.of<T>();
  const double exponent = round_to_format(number, *inner_format(call), Rounding::kNearestEven);
  constexpr double kCube = 3, kInverseSquare = -2;
  if (exponent != kCube && exponent != kInverseSquare) {
    kernels.unary(Unary::kPower, {exponent}, x, y, count);
    return;
  }
  std::vector<T> square(static_cast<size_t>(count));
  kernels.mul(x, x, square.data(), count);
  round_inside(call, square.data(), count);
  if (exponent == kCube) {
    kernels.mul(square.data(), x, y, count);
  } else {
    kernels.unary(Unary::kReciprocal, {}, square.data(), y, count);
  }
}

// dx = dy (e x^(e-1)), rounded after every operation.
template <typename T>
void torch_power_backward(const OpCall& call, double exponent) {
  const Kernels<T>& kernels = call.kernels.of<T>();
  const int64_t count = call.inputs[0]->size();
  T* dx = output<T>(call, 0);
  if (exponent == 0) {
    std::fill_n(dx, count, T{0});
    return;
  }
  std::vector<T> slope(static_cast<size_t>(count));
  torch_power(call, exponent - 1, input<T>(call, 0), slope.data(), count);
  round_inside(call, slope.data(), count);
  kernels.scale(slope.data(), static_cast<T>(exponent), slope.data(), count);
  round_inside(call, slope.data(), count);
  kernels.mul(slope.data(), input<T>(call, 1), dx, count);
}

void run_pow(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    if (inner_format(call) != nullptr && call.inputs.size() == 1) {
      return torch_power(call, exponent_of(call.node).a, input<T>(call, 0), output<T>(call, 0),
                         call.inputs[0]->size());
    }
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
    if (call.inputs.size() == 2 && inner_format(call) != nullptr) {
      return torch_power_backward<T>(call, exponent_of(call.node).a);
    }
    if (call.inputs.size() == 2) {
      return call.kernels.of<T>().unary_backward(Unary::kPower, exponent_of(call.node),
                                                 input<T>(call, 0), dy, dx, call.inputs[0]->size());
    }
    OpCall operands = call;
    operands.inputs = call.inputs.first(2);
    run_binary<T>(operands, [&call, dy, dx](const T* x, const T* e, T* out, int64_t count) {
      call.kernels.of<T>().power_backward_base(x, e, dy + (out - dx), out, count);
    });
  });
}

void run_backward_exponent(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    OpCall operands = call;
    operands.inputs = call.inputs.first(2);
    const T *y = input<T>(call, 2), *dy = input<T>(call, 3), *all = output<T>(call, 0);
    run_binary<T>(operands, [&call, y, dy, all](const T* x, const T* e, T* de, int64_t count) {
      const std::ptrdiff_t at = de - all;
      call.kernels.of<T>().power_backward_exponent(x, e, y + at, dy + at, de, count);
    });
  });
}

}  // namespace

std::vector<OpDef> pow_ops() {
  return {
      {.name = "pow",
       .help = "y = x^e; e is the number `exponent` or operand 1, broadcast; exponents 3 and -2 "
               "multiply and round the parts, as PyTorch does",
       .source = "torch.pow; CUDA autocast: fp32",
       .cast_class = CastClass::kFp32,
       .min_inputs = 1,
       .max_inputs = 2,
       .attributes = {"exponent"},
       .infer = infer_pow,
       .vjp = pow_vjp,
       .run = run_pow,
       .foreign_names = {.torch = "__pow__", .mxnet = "_power _power_scalar"},
       .formats = {.rounds_inside = RoundsInside::kAlways}},
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
