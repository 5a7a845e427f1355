// adaptive_avg_pool2d: the means of `size` windows that cover the image. Window p of P over H rows
// is floor(p H / P) up to ceil((p + 1) H / P). A single output pixel is the mean over the whole
// plane, summed in the order of emulation/kernels/reduction.h, like all long sums; otherwise each
// window is summed by itself.
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

std::vector<AxisWindow> windows(int64_t in, int64_t out) {
  std::vector<AxisWindow> found;
  for (int64_t p = 0; p < out; ++p) {
    const int64_t begin = p * in / out, end = ((p + 1) * in + out - 1) / out;
    found.push_back({begin, end, end - begin});
  }
  return found;
}

Shape pooled_shape(const Node& node, const Shape& x) {
  require_image(node, x);
  const std::vector<int64_t> size = pair_attribute(node, "size", {});
  require_positive(node, "size", size);
  return {x[0], x[1], size[0], size[1]};
}

AvgPool pool_of(const Shape& x, const Shape& y) {
  return {x[0] * x[1], x[2], x[3], windows(x[2], y[2]), windows(x[3], y[3])};
}

std::vector<TensorType> infer(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  return {{pooled_shape(node, inputs[0].shape)}};
}

void vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "adaptive_avg_pool2d_backward", {builder.output_gradient(node)},
                   with_operand_shape(builder, node, "input_shape", 0), {0});
}

void run(const OpCall& call) {
  const Shape &x = input_shape(call, 0), &y = output_shape(call, 0);
  dispatch(call, [&]<typename T>(T*) {
    T* out = output<T>(call, 0);
    if (y[2] > 1 || y[3] > 1) {
      return call.kernels.of<T>().avg_pool2d(pool_of(x, y), input<T>(call, 0), out,
                                             call.reduce_accumulator);
    }
    const int64_t planes = x[0] * x[1], pixels = x[2] * x[3];
    call.kernels.of<T>().channel_sum(input<T>(call, 0), out, 1, planes, pixels,
                                     call.reduce_accumulator);
    call.kernels.of<T>().divide(out, static_cast<T>(pixels), out, planes);
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape x = ints_attribute(node, "input_shape", {});
  require_shape(node, inputs, 0, pooled_shape(node, x), "(N,C,P,Q)");
  return {{x}};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().avg_pool2d_backward(pool_of(output_shape(call, 0), input_shape(call, 0)),
                                             input<T>(call, 0), output<T>(call, 0),
                                             call.reduce_accumulator);
  });
}

}  // namespace

std::vector<OpDef> adaptive_avg_pool2d_ops() {
  return {
      {.name = "adaptive_avg_pool2d",
       .help =
           "y = mean over each of size (rows, columns) windows that cover the image; x (N,C,H,W)",
       .source = "torch.nn.functional.adaptive_avg_pool2d; CUDA autocast: not listed, runs in its "
                 "input's type",
       .attributes = {"size"},
       .infer = infer,
       .vjp = vjp,
       .run = run,
       .foreign_names = {.mxnet = "AdaptiveAvgPooling2D"}},
      {.name = "adaptive_avg_pool2d_backward",
       .help =
           "dx = sum of dy / window size over the windows that contain the pixel, in scan order",
       .source = "chain rule of adaptive_avg_pool2d",
       .attributes = {"size", "input_shape"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
