// softmax and log_softmax along any dimension.
#include "src/graph/ops/op_helpers.h"
#include "src/graph/ops/rows.h"

namespace lockstep {
namespace {

bool is_log(const Node& node) {
  return node.op.starts_with("log_");
}

std::vector<TensorType> infer_forward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  single_dim(node, inputs[0].shape, -1);
  return {inputs[0]};
}

void vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, node.op + "_backward", {output_id(node, 0), builder.output_gradient(node)},
                   node.attributes, {0});
}

RowLayout layout_of(const OpCall& call) {
  const std::vector<int64_t> dims = {single_dim(call.node, input_shape(call, 0), -1)};
  return {input_shape(call, 0), dims};
}

bool is_along_last(const OpCall& call) {
  const Shape& shape = input_shape(call, 0);
  return single_dim(call.node, shape, -1) + 1 == static_cast<int64_t>(shape.size());
}

void run_forward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Kernels<T>& kernels = call.kernels.of<T>();
    // Along other dimensions ATen's CPU kernel rounds nothing inside.
    const Format* inner = is_along_last(call) ? inner_format(call) : nullptr;
    const RowLayout layout = layout_of(call);
    std::vector<T> storage;
    const T* x = layout.gather(call.kernels, input<T>(call, 0), storage);
    layout.write_rows(call.kernels, output<T>(call, 0), [&](T* y) {
      if (is_log(call.node)) {
        kernels.log_softmax(x, y, layout.rows, layout.cols, call.reduce_accumulator, inner);
      } else {
        kernels.softmax(x, y, layout.rows, layout.cols, call.reduce_accumulator);
      }
    });
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  single_dim(node, inputs[0].shape, -1);
  require_shape(node, inputs, 1, inputs[0].shape, "the shape of y");
  return {inputs[0]};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Kernels<T>& kernels = call.kernels.of<T>();
    const auto kernel = is_log(call.node) ? kernels.log_softmax_backward : kernels.softmax_backward;
    const RowLayout layout = layout_of(call);
    std::vector<T> y_storage, dy_storage;
    const T* y = layout.gather(call.kernels, input<T>(call, 0), y_storage);
    const T* dy = layout.gather(call.kernels, input<T>(call, 1), dy_storage);
    layout.write_rows(call.kernels, output<T>(call, 0), [&](T* dx) {
      kernel(y, dy, dx, layout.rows, layout.cols, call.reduce_accumulator);
    });
  });
}

}  // namespace

std::vector<OpDef> softmax_ops() {
  return {
      {.name = "softmax",
       .help = "y = exp(x - max) / sum exp(x - max) along `dim`; NaN if all are -inf",
       .source = "torch.softmax; CUDA autocast: fp32_set_opt_dtype",
       .cast_class = CastClass::kFp32,
       .attributes = {"dim"},
       .infer = infer_forward,
       .vjp = vjp,
       .run = run_forward},
      {.name = "log_softmax",
       .help = "y = (x - max) - ln sum exp(x - max) along `dim`; NaN if all are -inf",
       .source = "torch.log_softmax; CUDA autocast: fp32_set_opt_dtype",
       .cast_class = CastClass::kFp32,
       .attributes = {"dim"},
       .infer = infer_forward,
       .vjp = vjp,
       .run = run_forward,
       .formats = {.rounds_inside = RoundsInside::kOnCpu}},
      {.name = "softmax_backward",
       .help = "dx = y (dy - sum dy y) along `dim`; operands y, dy",
       .source = "chain rule of softmax",
       .cast_class = CastClass::kFp32,
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"dim"},
       .infer = infer_backward,
       .run = run_backward},
      {.name = "log_softmax_backward",
       .help = "dx = dy - exp(y) sum dy along `dim`; operands y, dy",
       .source = "chain rule of log_softmax",
       .cast_class = CastClass::kFp32,
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"dim"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
