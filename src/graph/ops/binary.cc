// sub, div, minimum and maximum with numpy's broadcasting, or with a number instead of b.
#include <vector>

#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

template <Binary kFunction>
void run_function(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    run_binary<T>(call, [&call](const T* a, const T* b, T* y, int64_t count) {
      call.kernels.of<T>().binary(kFunction, {}, a, b, y, count);
    });
  });
}

void sub_vjp(GradientBuilder& builder, const Node& node) {
  const std::string dy = builder.output_gradient(node);
  if (builder.needs_gradient(node, 0)) pass_broadcast_gradient(builder, node, 0, dy);
  if (node.inputs.size() == 1 || !builder.needs_gradient(node, 1)) return;
  add_broadcast_gradient(builder, node, 1, "neg", {dy});
}

void div_vjp(GradientBuilder& builder, const Node& node) {
  const std::string dy = builder.output_gradient(node);
  if (has_scalar(node)) {
    builder.add_node(node, "div", {dy}, node.attributes, {0});
    return;
  }
  if (builder.needs_gradient(node, 0)) {
    add_broadcast_gradient(builder, node, 0, "div", {dy, node.inputs[1]});
  }
  if (builder.needs_gradient(node, 1)) {
    add_broadcast_gradient(builder, node, 1, "div_backward_divisor",
                           {node.inputs[0], node.inputs[1], dy});
  }
}

// Both operands use the gradient for the first one, since minimum(a, b) = minimum(b, a).
void choice_vjp(GradientBuilder& builder, const Node& node) {
  const std::string dy = builder.output_gradient(node), op = node.op + "_backward";
  if (has_scalar(node)) {
    builder.add_node(node, op, {node.inputs[0], dy}, node.attributes, {0});
    return;
  }
  for (size_t operand = 0; operand < 2; ++operand) {
    if (!builder.needs_gradient(node, operand)) continue;
    add_broadcast_gradient(builder, node, operand, op,
                           {node.inputs[operand], node.inputs[1 - operand], dy});
  }
}

// Operands a, b (unless `scalar` replaces it) and dy, of the shape to which they broadcast.
std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  const size_t last = inputs.size() - 1;
  const Shape shape = infer_binary(node, inputs.first(last))[0].shape;
  require_float(node, inputs, last);
  require_shape(node, inputs, last, shape, "the shape to which the others broadcast");
  return {{shape}};
}

// Calls kernel(a, b, dy, dx, count) on the repeated operands; see fill_output().
template <typename T, typename Kernel>
void run_backward(const OpCall& call, Kernel kernel) {
  const size_t last = call.inputs.size() - 1;
  const T* dy = input<T>(call, last);
  T* dx = output<T>(call, 0);
  OpCall operands = call;
  operands.inputs = call.inputs.first(last);
  run_binary<T>(operands, [=](const T* a, const T* b, T* out, int64_t count) {
    kernel(a, b, dy + (out - dx), out, count);
  });
}

template <int kSign>
void run_choice_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    run_backward<T>(call, [&call](const T* own, const T* other, const T* dy, T* dx, int64_t count) {
      call.kernels.of<T>().choice_backward(T(kSign), own, other, dy, dx, count);
    });
  });
}

// In a narrow format three kernels, as in PyTorch, each of which rounds: -dy ((a / b) / b).
template <typename T>
void divisor_in_steps(const OpCall& call, const T* a, const T* b, const T* dy, T* db,
                      int64_t count) {
  const Kernels<T>& kernels = call.kernels.of<T>();
  std::vector<T> quotient(a, a + count);
  for (int times = 0; times < 2; ++times) {
    kernels.binary(Binary::kDiv, {}, quotient.data(), b, quotient.data(), count);
    kernels.quantize(quotient.data(), quotient.data(), count, {inner_format(call)}, nullptr);
  }
  kernels.mul(dy, quotient.data(), db, count);
  kernels.scale(db, T{-1}, db, count);
}

void run_div_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    if (inner_format(call) == nullptr) {
      return run_backward<T>(call, call.kernels.of<T>().div_backward);
    }
    run_backward<T>(call, [&call](const T* a, const T* b, const T* dy, T* db, int64_t count) {
      divisor_in_steps(call, a, b, dy, db, count);
    });
  });
}

OpDef forward_row(std::string_view name, std::string_view help, std::string_view source,
                  void (*vjp)(GradientBuilder&, const Node&), void (*run)(const OpCall&),
                  ForeignNames foreign_names, int pole_operand = -1) {
  return {.name = name,
          .help = help,
          .source = source,
          .min_inputs = 1,
          .max_inputs = 2,
          .attributes = {"scalar"},
          .infer = infer_binary,
          .vjp = vjp,
          .run = run,
          .foreign_names = foreign_names,
          .elements = {.keeps_masks = true},
          .meaning = {.pole_operand = pole_operand}};
}

OpDef backward_row(std::string_view name, std::string_view help, std::string_view source,
                   void (*run)(const OpCall&), int pole_operand = -1) {
  return {.name = name,
          .help = help,
          .source = source,
          .min_inputs = 2,
          .max_inputs = 3,
          .attributes = {"scalar"},
          .infer = infer_backward,
          .run = run,
          .meaning = {.pole_operand = pole_operand}};
}

}  // namespace

std::vector<OpDef> binary_ops() {
  std::vector<OpDef> rows = {
      forward_row("sub", "y = a - b; shapes broadcast; b may be the number `scalar`",
                  "torch.sub; CUDA autocast: not listed, type promotion decides", sub_vjp,
                  run_function<Binary::kSub>,
                  {.torch = "__sub__", .mxnet = "elemwise_sub broadcast_sub"}),
      forward_row("div", "y = a / b; shapes broadcast; b may be the number `scalar`",
                  "torch.div; CUDA autocast: not listed, type promotion decides", div_vjp,
                  run_function<Binary::kDiv>,
                  {.torch = "__truediv__", .mxnet = "elemwise_div broadcast_div"},
                  /*pole_operand=*/1),
      forward_row("minimum", "y = the smaller of a and b, NaN if either is; shapes as in sub",
                  "torch.minimum; CUDA autocast: not listed, type promotion decides", choice_vjp,
                  run_function<Binary::kMinimum>, {.mxnet = "broadcast_minimum"}),
      forward_row("maximum", "y = the larger of a and b, NaN if either is; shapes as in sub",
                  "torch.maximum; CUDA autocast: not listed, type promotion decides", choice_vjp,
                  run_function<Binary::kMaximum>, {.mxnet = "broadcast_maximum"}),
      backward_row("div_backward_divisor", "db = -dy (a / b) / b; operands a, b, dy",
                   "chain rule of div", run_div_backward, /*pole_operand=*/1),
      backward_row("minimum_backward",
                   "da = dy where a < b, dy / 2 where a = b, else 0; operands a, b, dy",
                   "torch's derivative of minimum", run_choice_backward<1>),
      backward_row("maximum_backward",
                   "da = dy where a > b, dy / 2 where a = b, else 0; operands a, b, dy",
                   "torch's derivative of maximum", run_choice_backward<-1>),
  };
  rows.front().meaning.is_difference = true;
  rows.front().formats.on_cpu = read_numbers_rounded;
  OpDef& div = rows[1];
  div.formats.on_cpu = read_second_number_wide;
  div.formats.rounds_inside = RoundsInside::kAlways;  // the divisor's gradient
  return rows;
}

}  // namespace lockstep
