// logsumexp: ln sum exp x over any dimensions, with the maximum subtracted first.
#include "src/graph/ops/op_helpers.h"
#include "src/graph/ops/rows.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_logsumexp(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const std::vector<int64_t> dims = reduced_dims(node, "dims", inputs[0].shape);
  return {{reduced_shape(inputs[0].shape, dims, bool_attribute(node, "keepdim", false))}};
}

void run_logsumexp(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& shape = input_shape(call, 0);
    const RowLayout layout(shape, reduced_dims(call.node, "dims", shape));
    std::vector<T> storage;
    const T* x = layout.gather(call.kernels, input<T>(call, 0), storage);
    call.kernels.of<T>().logsumexp(x, output<T>(call, 0), layout.rows, layout.cols,
                                   call.reduce_accumulator, inner_format(call));
  });
}

void logsumexp_vjp(GradientBuilder& builder, const Node& node) {
  const Shape& shape = builder.graph().type_of(node.inputs[0]).shape;
  builder.add_node(node, "logsumexp_backward",
                   {node.inputs[0], output_id(node, 0), builder.output_gradient(node)},
                   {{"dims", reduced_dims(node, "dims", shape)}}, {0});
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const RowLayout layout(inputs[0].shape, reduced_dims(node, "dims", inputs[0].shape));
  require(element_count(inputs[1].shape) == layout.rows, node,
          "operand 1 is " + to_string(inputs[1].shape) + ", must have " +
              std::to_string(layout.rows) + " elements, one per sum");
  require_shape(node, inputs, 2, inputs[1].shape, "the shape of y");
  return {inputs[0]};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& shape = input_shape(call, 0);
    const RowLayout layout(shape, reduced_dims(call.node, "dims", shape));
    std::vector<T> storage;
    const T* x = layout.gather(call.kernels, input<T>(call, 0), storage);
    layout.write_rows(call.kernels, output<T>(call, 0), [&](T* dx) {
      call.kernels.of<T>().logsumexp_backward(x, input<T>(call, 1), input<T>(call, 2), dx,
                                              layout.rows, layout.cols, inner_format(call));
    });
  });
}

}  // namespace

std::vector<OpDef> logsumexp_ops() {
  return {
      {.name = "logsumexp",
       .help = "y = max + ln sum exp(x - max) over `dims` (all if absent); rounded after every "
               "operation",
       .source = "torch.logsumexp, several kernels; CUDA autocast: fp32",
       .cast_class = CastClass::kFp32,
       .attributes = {"dims", "keepdim"},
       .infer = infer_logsumexp,
       .vjp = logsumexp_vjp,
       .run = run_logsumexp,
       .formats = {.rounds_inside = RoundsInside::kAlways}},
      {.name = "logsumexp_backward",
       .help = "dx = dy exp(x - y); operands x, y, dy",
       .source = "chain rule of logsumexp",
       .cast_class = CastClass::kFp32,
       .min_inputs = 3,
       .max_inputs = 3,
       .attributes = {"dims"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
