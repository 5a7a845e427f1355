// avg_pool2d: the mean of each window. The divisor counts the padding (count_include_pad) but not
// the places that ceil_mode adds beyond it; divisor_override replaces it.

#include <algorithm>

#include "src/graph/ops/pool_windows.h"

namespace lockstep {
namespace {

std::vector<AxisWindow> windows(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                                int64_t pad, bool count_padding) {
  std::vector<AxisWindow> found;
  for (int64_t p = 0; p < out; ++p) {
    const int64_t first = p * stride - pad, last = std::min(first + kernel, in + pad);
    AxisWindow window{std::max<int64_t>(first, 0), std::min(last, in), 0};
    window.extent = count_padding ? last - first : window.end - window.begin;
    found.push_back(window);
  }
  return found;
}

AvgPool pool_of(const Node& node, const Shape& x) {
  const PoolShape s = pool_shape(node, x);
  const bool count_padding = bool_attribute(node, "count_include_pad", true);
  AvgPool pool{s.batch * s.channels, s.in_height, s.in_width, {}, {}};
  pool.rows = windows(s.in_height, s.out_height, s.kernel_h, s.stride_h, s.pad_h, count_padding);
  pool.columns = windows(s.in_width, s.out_width, s.kernel_w, s.stride_w, s.pad_w, count_padding);
  pool.divisor = int_attribute(node, "divisor_override", 0);
  return pool;
}

std::vector<TensorType> infer(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  bool_attribute(node, "count_include_pad", true);
  int_attribute(node, "divisor_override", 0);
  return {{output_extents(pool_shape(node, inputs[0].shape))}};
}

void vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "avg_pool2d_backward", {builder.output_gradient(node)},
                   with_operand_shape(builder, node, "input_shape", 0), {0});
}

void run(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().avg_pool2d(pool_of(call.node, input_shape(call, 0)), input<T>(call, 0),
                                    output<T>(call, 0), call.reduce_accumulator);
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape x = ints_attribute(node, "input_shape", {});
  require_shape(node, inputs, 0, output_extents(pool_shape(node, x)), "(N,C,P,Q)");
  return {{x}};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().avg_pool2d_backward(pool_of(call.node, output_shape(call, 0)),
                                             input<T>(call, 0), output<T>(call, 0),
                                             call.reduce_accumulator);
  });
}

}  // namespace

std::vector<OpDef> avg_pool2d_ops() {
  return {
      {.name = "avg_pool2d",
       .help = "y = mean over each window; x (N,C,H,W), y (N,C,P,Q); stride: the kernel's if "
               "absent; divisor: kernel size with padding, without (count_include_pad false), or "
               "divisor_override",
       .source = "torch.nn.functional.avg_pool2d; CUDA autocast: not listed, runs in its input's "
                 "type",
       .attributes = {"kernel", "stride", "padding", "ceil_mode", "count_include_pad",
                      "divisor_override"},
       .infer = infer,
       .vjp = vjp,
       .run = run,
       .foreign_names = {.mxnet = "Pooling"}},
      {.name = "avg_pool2d_backward",
       .help = "dx = sum of dy / divisor over the windows that contain the pixel, in scan order",
       .source = "chain rule of avg_pool2d",
       .attributes = {"kernel", "stride", "padding", "ceil_mode", "count_include_pad",
                      "divisor_override", "input_shape"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
