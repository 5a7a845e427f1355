// pixel_shuffle: turns channels into pixels, x (..., C r^2, H, W) -> y (..., C, H r, W r) with
// y[c, h r + i, w r + j] = x[c r^2 + i r + j, h, w]; pixel_unshuffle is the inverse.
#include "src/graph/ops/movement.h"

namespace lockstep {
namespace {

struct Shuffle {
  int64_t factor, outer, height,
      width;         // outer: everything up to C; height, width of the wide side
  Shape wide, deep;  // (..., C, H r, W r) and (..., C r^2, H, W)
};

Shuffle shuffle_of(const Node& node, const Shape& given, bool given_is_deep) {
  Shuffle s{};
  s.factor = int_attribute(node, "factor", 0);
  require(s.factor >= 1, node,
          "attribute 'factor' is " + std::to_string(s.factor) + ", must be at least 1");
  require(given.size() >= 3, node,
          "operand 0 is " + to_string(given) + ", must have at least 3 dimensions (...,C,H,W)");
  s.wide = s.deep = given;
  const size_t c = given.size() - 3;
  const int64_t square = s.factor * s.factor;
  if (given_is_deep) {
    require(given[c] % square == 0, node,
            "operand 0 " + to_string(given) + " has " + std::to_string(given[c]) +
                " channels, must be a multiple of factor^2 = " + std::to_string(square));
    s.wide[c] /= square, s.wide[c + 1] *= s.factor, s.wide[c + 2] *= s.factor;
  } else {
    require(given[c + 1] % s.factor == 0 && given[c + 2] % s.factor == 0, node,
            "operand 0 is " + to_string(given) +
                ", height and width must be multiples of factor = " + std::to_string(s.factor));
    s.deep[c] *= square, s.deep[c + 1] /= s.factor, s.deep[c + 2] /= s.factor;
  }
  s.height = s.wide[c + 1], s.width = s.wide[c + 2];
  s.outer = element_count(s.wide) / (s.height * s.width);
  return s;
}

std::vector<TensorType> infer_shuffle(const Node& node, std::span<const TensorType> inputs) {
  return {{shuffle_of(node, inputs[0].shape, true).wide, inputs[0].element}};
}
std::vector<TensorType> infer_unshuffle(const Node& node, std::span<const TensorType> inputs) {
  return {{shuffle_of(node, inputs[0].shape, false).deep, inputs[0].element}};
}

void shuffle_vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "pixel_unshuffle", {builder.output_gradient(node)}, node.attributes, {0});
}
void unshuffle_vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "pixel_shuffle", {builder.output_gradient(node)}, node.attributes, {0});
}

// (outer, h, i, w, j) of the wide side is (outer, i, j, h, w) of the deep one.
void run(const OpCall& call, bool to_wide) {
  const Shuffle s = shuffle_of(call.node, input_shape(call, 0), to_wide);
  const int64_t r = s.factor, h = s.height / r, w = s.width / r;
  const Shape extents = {s.outer, h, r, w, r};
  const std::vector<int64_t> wide = dense_strides(extents);
  const std::vector<int64_t> deep = {r * r * h * w, w, r * h * w, 1, h * w};
  dispatch_any(call, [&]<typename T>(T*) {
    call.kernels.movement<T>().strided_copy(
        to_wide ? strided_dims(extents, deep, wide) : strided_dims(extents, wide, deep),
        input<T>(call, 0), output<T>(call, 0));
  });
}
void run_shuffle(const OpCall& call) {
  run(call, true);
}
void run_unshuffle(const OpCall& call) {
  run(call, false);
}

}  // namespace

std::vector<OpDef> pixel_shuffle_ops() {
  return {{.name = "pixel_shuffle",
           .help = "x (...,C r^2,H,W) -> y (...,C,H r,W r), r = factor: channels become pixels",
           .source = "torch.pixel_shuffle; CUDA autocast: not listed, runs in its input's type",
           .attributes = {"factor"},
           .infer = infer_shuffle,
           .vjp = shuffle_vjp,
           .run = run_shuffle},
          {.name = "pixel_unshuffle",
           .help = "x (...,C,H r,W r) -> y (...,C r^2,H,W), r = factor: pixels become channels",
           .source = "torch.pixel_unshuffle; CUDA autocast: not listed",
           .attributes = {"factor"},
           .infer = infer_unshuffle,
           .vjp = unshuffle_vjp,
           .run = run_unshuffle}};
}

}  // namespace lockstep
