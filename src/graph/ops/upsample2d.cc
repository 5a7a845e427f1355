// upsample_nearest2d, upsample_bilinear2d: images at another size, given as `size` or as `scale` (a
// number, or one for rows and one for columns). If the scale is given, places are computed from it
// and not from the sizes, whose ratio may differ: size = floor(extent * scale).
#include <cmath>

#include "emulation/kernels/args/upsample_args.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

struct Resize {
  int64_t planes, in[2], out[2];
  double scale[2];  // 0 if the size was given
  bool align_corners;
};

// A number for both axes, or a list of two integers.
std::vector<double> scales_attribute(const Node& node) {
  const auto found = node.attributes.find("scale");
  if (found == node.attributes.end()) return {};
  if (const auto* list = std::get_if<std::vector<int64_t>>(&found->second)) {
    require(list->size() == 2, node,
            "attribute 'scale' has " + std::to_string(list->size()) +
                " numbers, must have 1 or 2 (rows, columns)");
    return {static_cast<double>((*list)[0]), static_cast<double>((*list)[1])};
  }
  const double scale = double_attribute(node, "scale", 0);
  return {scale, scale};
}

Resize resize_of(const Node& node, const Shape& x) {
  require_image(node, x);
  const std::vector<double> scales = scales_attribute(node);
  const bool has_size = node.attributes.contains("size");
  require(has_size != !scales.empty(), node,
          has_size ? "has both attributes 'size' and 'scale', must have only one"
                   : "has neither attribute 'size' nor 'scale', must have one");
  Resize r{x[0] * x[1], {x[2], x[3]}, {}, {}, bool_attribute(node, "align_corners", false)};
  for (size_t d = 0; d < 2; ++d) {
    if (has_size) {
      r.out[d] = pair_attribute(node, "size", {})[d];
    } else {
      r.scale[d] = scales[d];
      require(scales[d] > 0 && std::isfinite(scales[d]), node,
              "attribute 'scale' is " + std::to_string(scales[d]) + ", must be positive");
      const double wanted = std::floor(static_cast<double>(r.in[d]) * scales[d]);
      require(wanted <= static_cast<double>(kMostExtent), node,
              "attribute 'scale' is " + std::to_string(scales[d]) + ", the output may have " +
                  std::to_string(kMostExtent) + (d == 0 ? " rows" : " columns") + " at most");
      r.out[d] = static_cast<int64_t>(wanted);
    }
    require(r.out[d] >= 1, node,
            "the output would have " + std::to_string(r.out[d]) + (d == 0 ? " rows" : " columns") +
                ", must have at least 1");
  }
  return r;
}

Shape resized_shape(const Node& node, const Shape& x) {
  const Resize r = resize_of(node, x);
  return {x[0], x[1], r.out[0], r.out[1]};
}

std::vector<TensorType> infer(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  return {{resized_shape(node, inputs[0].shape)}};
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape x = ints_attribute(node, "input_shape", {});
  require_shape(node, inputs, 0, resized_shape(node, x), "(N,C,P,Q)");
  return {{x}};
}

void vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, node.op + "_backward", {builder.output_gradient(node)},
                   with_operand_shape(builder, node, "input_shape", 0), {0});
}

std::vector<int64_t> places(const Resize& r, size_t axis) {
  return nearest_places(r.in[axis], r.out[axis], r.scale[axis]);
}
template <typename T>
std::vector<AxisSample<T>> samples(const Resize& r, size_t axis) {
  return bilinear_samples<T>(r.in[axis], r.out[axis], r.scale[axis], r.align_corners);
}

void run_nearest(const OpCall& call) {
  const Resize r = resize_of(call.node, input_shape(call, 0));
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().upsample_nearest2d({r.planes, r.in[0], r.in[1]}, places(r, 0),
                                            places(r, 1), input<T>(call, 0), output<T>(call, 0));
  });
}
void run_nearest_backward(const OpCall& call) {
  const Resize r = resize_of(call.node, output_shape(call, 0));
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().upsample_nearest2d_backward({r.planes, r.in[0], r.in[1]}, places(r, 0),
                                                     places(r, 1), input<T>(call, 0),
                                                     output<T>(call, 0), call.reduce_accumulator);
  });
}
void run_bilinear(const OpCall& call) {
  const Resize r = resize_of(call.node, input_shape(call, 0));
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().upsample_bilinear2d({r.planes, r.in[0], r.in[1]}, samples<T>(r, 0),
                                             samples<T>(r, 1), input<T>(call, 0),
                                             output<T>(call, 0));
  });
}
void run_bilinear_backward(const OpCall& call) {
  const Resize r = resize_of(call.node, output_shape(call, 0));
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().upsample_bilinear2d_backward(
        {r.planes, r.in[0], r.in[1]}, samples<T>(r, 0), samples<T>(r, 1), input<T>(call, 0),
        output<T>(call, 0), call.reduce_accumulator);
  });
}

}  // namespace

std::vector<OpDef> upsample2d_ops() {
  return {
      {.name = "upsample_nearest2d",
       .help = "y = the pixel of x at floor(place / scale); x (N,C,H,W); size (rows, columns) or "
               "scale",
       .source = "torch.nn.functional.interpolate, mode nearest; CUDA autocast: fp32",
       .cast_class = CastClass::kFp32,
       .attributes = {"size", "scale"},
       .infer = infer,
       .vjp = vjp,
       .run = run_nearest,
       .foreign_names = {.torch = "interpolate"}},
      {.name = "upsample_nearest2d_backward",
       .help = "dx = sum of dy over the pixels that read it, in scan order",
       .source = "chain rule of upsample_nearest2d",
       .cast_class = CastClass::kFp32,
       .attributes = {"size", "scale", "input_shape"},
       .infer = infer_backward,
       .run = run_nearest_backward},
      {.name = "upsample_bilinear2d",
       .help = "y = the weighted mean of the four pixels of x around the place; x (N,C,H,W); size "
               "(rows, columns) or scale; align_corners: the corner pixels' centres coincide",
       .source = "torch.nn.functional.interpolate, mode bilinear; CUDA autocast: fp32",
       .cast_class = CastClass::kFp32,
       .attributes = {"size", "scale", "align_corners"},
       .infer = infer,
       .vjp = vjp,
       .run = run_bilinear,
       .foreign_names = {.torch = "interpolate"}},
      {.name = "upsample_bilinear2d_backward",
       .help = "dx = sum of dy times the pixel's weight, in scan order of dy",
       .source = "chain rule of upsample_bilinear2d",
       .cast_class = CastClass::kFp32,
       .attributes = {"size", "scale", "align_corners", "input_shape"},
       .infer = infer_backward,
       .run = run_bilinear_backward},
  };
}

}  // namespace lockstep
