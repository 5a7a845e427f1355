// amax: the largest element over any dimensions; ties share the gradient. max_dim: the largest
// along one dimension and its first position, the only one that gets the gradient.
#include "src/graph/ops/op_helpers.h"
#include "src/graph/ops/rows.h"

namespace lockstep {
namespace {

std::vector<int64_t> dims_of(const Node& node, const Shape& shape) {
  if (node.op.starts_with("amax")) return reduced_dims(node, "dims", shape);
  return {single_dim(node, shape, -1)};
}

std::vector<TensorType> infer_forward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const std::vector<int64_t> dims = dims_of(node, inputs[0].shape);
  const Shape shape = reduced_shape(inputs[0].shape, dims, bool_attribute(node, "keepdim", false));
  if (node.op == "amax") return {{shape}};
  return {{shape}, {shape, ElementType::kInt}};
}

void run_forward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& shape = input_shape(call, 0);
    const RowLayout layout(shape, dims_of(call.node, shape));
    std::vector<T> storage;
    const T* x = layout.gather(call.kernels, input<T>(call, 0), storage);
    int32_t* index = call.outputs.size() > 1 ? output<int32_t>(call, 1) : nullptr;
    call.kernels.of<T>().row_maxima(x, output<T>(call, 0), index, layout.rows, layout.cols);
  });
}

void amax_vjp(GradientBuilder& builder, const Node& node) {
  const Shape& shape = builder.graph().type_of(node.inputs[0]).shape;
  builder.add_node(node, "amax_backward",
                   {node.inputs[0], output_id(node, 0), builder.output_gradient(node)},
                   {{"dims", reduced_dims(node, "dims", shape)}}, {0});
}

std::vector<TensorType> infer_amax_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const RowLayout layout(inputs[0].shape, dims_of(node, inputs[0].shape));
  require(element_count(inputs[1].shape) == layout.rows, node,
          "operand 1 is " + to_string(inputs[1].shape) + ", must have " +
              std::to_string(layout.rows) + " elements, one per maximum");
  require_shape(node, inputs, 2, inputs[1].shape, "the shape of y");
  return {inputs[0]};
}

void run_amax_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& shape = input_shape(call, 0);
    const RowLayout layout(shape, dims_of(call.node, shape));
    std::vector<T> storage;
    const T* x = layout.gather(call.kernels, input<T>(call, 0), storage);
    layout.write_rows(call.kernels, output<T>(call, 0), [&](T* dx) {
      call.kernels.of<T>().row_maxima_backward(x, input<T>(call, 1), input<T>(call, 2), dx,
                                               layout.rows, layout.cols);
    });
  });
}

void max_dim_vjp(GradientBuilder& builder, const Node& node) {
  const Shape& shape = builder.graph().type_of(node.inputs[0]).shape;
  builder.add_node(node, "max_dim_backward", {output_id(node, 1), builder.output_gradient(node)},
                   {{"shape", shape}, {"dim", single_dim(node, shape, -1)}}, {0});
}

std::vector<TensorType> infer_max_dim_backward(const Node& node,
                                               std::span<const TensorType> inputs) {
  require_int(node, inputs, 0);
  require_float(node, inputs, 1);
  const Shape shape = ints_attribute(node, "shape", {});
  const RowLayout layout(shape, dims_of(node, shape));
  require(element_count(inputs[0].shape) == layout.rows, node,
          "operand 0 is " + to_string(inputs[0].shape) + ", must have " +
              std::to_string(layout.rows) + " elements, one per maximum");
  require_shape(node, inputs, 1, inputs[0].shape, "the shape of the indices");
  return {{shape}};
}

void run_max_dim_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& shape = output_shape(call, 0);
    const RowLayout layout(shape, dims_of(call.node, shape));
    layout.write_rows(call.kernels, output<T>(call, 0), [&](T* dx) {
      call.kernels.of<T>().row_index_backward(input<int32_t>(call, 0), input<T>(call, 1), dx,
                                              layout.rows, layout.cols);
    });
  });
}

}  // namespace

std::vector<OpDef> amax_ops() {
  return {
      {.name = "amax",
       .help = "y = largest element of x over `dims` (all if absent), NaN if there is one",
       .source = "torch.amax; CUDA autocast: not listed, runs in its input's type",
       .attributes = {"dims", "keepdim"},
       .infer = infer_forward,
       .vjp = amax_vjp,
       .run = run_forward,
       .formats = {.integer_bytes = 8}},
      {.name = "max_dim",
       .help = "y, index = largest element along `dim` and its first position",
       .source = "torch.max(x, dim); CUDA autocast: not listed, runs in its input's type",
       .attributes = {"dim", "keepdim"},
       .infer = infer_forward,
       .vjp = max_dim_vjp,
       .run = run_forward,
       .formats = {.integer_bytes = 8}},
      {.name = "amax_backward",
       .help = "dx = dy / n at the n elements equal to y, else 0; operands x, y, dy",
       .source = "torch's derivative of amax",
       .min_inputs = 3,
       .max_inputs = 3,
       .attributes = {"dims"},
       .infer = infer_amax_backward,
       .run = run_amax_backward},
      {.name = "max_dim_backward",
       .help = "dx = dy at the index, else 0; operands index, dy",
       .source = "torch's derivative of max",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"shape", "dim"},
       .infer = infer_max_dim_backward,
       .run = run_max_dim_backward},
  };
}

}  // namespace lockstep
