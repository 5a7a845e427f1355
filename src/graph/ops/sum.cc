// sum and mean over any dimensions. The terms of a result are added in row-major order.
#include "src/graph/ops/op_helpers.h"
#include "src/graph/ops/rows.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_sum(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const std::vector<int64_t> dims = reduced_dims(node, "dims", inputs[0].shape);
  return {{reduced_shape(inputs[0].shape, dims, bool_attribute(node, "keepdim", false))}};
}

template <bool kMean>
void run_sum(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& shape = input_shape(call, 0);
    const RowLayout layout(shape, reduced_dims(call.node, "dims", shape));
    std::vector<T> storage;
    const T* x = layout.gather(call.kernels, input<T>(call, 0), storage);
    T* y = output<T>(call, 0);
    call.kernels.of<T>().row_sums(x, y, layout.rows, layout.cols, call.reduce_accumulator);
    if (kMean) call.kernels.of<T>().repeat_rows(y, static_cast<T>(layout.cols), y, layout.rows, 1);
  });
}

template <bool kMean>
void sum_vjp(GradientBuilder& builder, const Node& node) {
  const Shape& shape = builder.graph().type_of(node.inputs[0]).shape;
  builder.add_node(node, kMean ? "mean_backward" : "sum_backward", {builder.output_gradient(node)},
                   {{"shape", shape}, {"dims", reduced_dims(node, "dims", shape)}}, {0});
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape shape = ints_attribute(node, "shape", {});
  const RowLayout layout(shape, reduced_dims(node, "dims", shape));
  require(element_count(inputs[0].shape) == layout.rows, node,
          "operand 0 is " + to_string(inputs[0].shape) + ", must have " +
              std::to_string(layout.rows) + " elements, one per sum");
  return {{shape}};
}

template <bool kMean>
void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& shape = output_shape(call, 0);
    const RowLayout layout(shape, reduced_dims(call.node, "dims", shape));
    const T divisor = kMean ? static_cast<T>(layout.cols) : T(1);
    layout.write_rows(call.kernels, output<T>(call, 0), [&](T* rows) {
      call.kernels.of<T>().repeat_rows(input<T>(call, 0), divisor, rows, layout.rows, layout.cols);
    });
  });
}

}  // namespace

std::vector<OpDef> sum_ops() {
  return {
      {.name = "sum",
       .help = "y = sum of x over `dims` (all if absent), in row-major order",
       .source = "torch.sum; CUDA autocast: fp32_set_opt_dtype",
       .cast_class = CastClass::kFp32,
       .attributes = {"dims", "keepdim"},
       .infer = infer_sum,
       .vjp = sum_vjp<false>,
       .run = run_sum<false>},
      {.name = "mean",
       .help = "y = sum of x over `dims` (all if absent), divided by their number of elements",
       .source = "torch.mean; CUDA autocast: not listed, runs in its input's type",
       .attributes = {"dims", "keepdim"},
       .infer = infer_sum,
       .vjp = sum_vjp<true>,
       .run = run_sum<true>},
      {.name = "sum_backward",
       .help = "dx = dy repeated along `dims` of the shape `shape`; operand dy",
       .source = "chain rule of sum",
       .cast_class = CastClass::kFp32,
       .attributes = {"shape", "dims"},
       .infer = infer_backward,
       .run = run_backward<false>},
      {.name = "mean_backward",
       .help = "dx = dy / count repeated along `dims` of the shape `shape`; operand dy",
       .source = "chain rule of mean",
       .attributes = {"shape", "dims"},
       .infer = infer_backward,
       .run = run_backward<true>},
  };
}

}  // namespace lockstep
