// A small vision transformer: patches as tokens, a class token, pre-normalised blocks.
// Source: A. Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021, section 3.1.
#include <fmt/format.h>

#include "src/core/error.h"
#include "src/models/transformer.h"

namespace lockstep {
namespace {

Graph build(const ModelShape& shape, bool training) {
  GraphBuilder b("vit");
  const TransformerSizes sizes = transformer_sizes(shape);
  const int64_t patch = shape.whole("patch");
  const Value images = add_images(b, shape);
  const Value labels = add_labels(b, {shape.batch});
  if (shape.image[1] % patch != 0 || shape.image[2] % patch != 0) {
    throw InputError(fmt::format("size patch {}: must divide the images' extents {}", patch,
                                 to_string(shape.image)));
  }

  Value x = b.conv2d("patches", images, sizes.width, patch, patch);  // (N,C,8,8)
  const Shape grid = b.shape_of(x);
  const int64_t tokens = grid[2] * grid[3];
  x = b.reshape("patches", x, {shape.batch, sizes.width, tokens});
  x = b.permute("patches", x, {0, 2, 1});  // (N,64,C)
  const Value first = b.op("expand", {b.parameter("class_token", {1, 1, sizes.width})},
                           {{"shape", Shape{shape.batch, 1, sizes.width}}}, "embed");
  x = b.op("cat", {first, x}, {{"dim", int64_t{1}}}, "embed");  // (N,65,C)
  const Value place = b.parameter("position", {1, tokens + 1, sizes.width});
  x = b.dropout("embed.dropout", b.op("add", {x, place}, {}, "embed"), sizes.dropout);
  for (int64_t i = 0; i < sizes.layers; ++i) {
    x = pre_norm_block(b, "blocks." + std::to_string(i), x, sizes, "", "none");
  }
  x = b.layer_norm("ln", x);
  x = b.reshape("head", b.slice("head", x, 1, 0, 1), {shape.batch, sizes.width});
  return finish_model(b, classify(b, "loss", b.linear("head", x, shape.classes), labels), training);
}

std::vector<InitRule> init(const ModelSizes&) {
  constexpr double kStd = 0.02;
  return {{"class_token", InitKind::kNormal, kStd},      {"position", InitKind::kNormal, kStd},
          {"blocks.*.weight", InitKind::kXavierUniform}, {"blocks.*.bias", InitKind::kConstant, 0},
          {"*ln*.weight", InitKind::kConstant, 1},       {"head.weight", InitKind::kNormal, kStd},
          {"head.bias", InitKind::kConstant, 0}};
}

}  // namespace

Model vit_model() {
  return {
      .name = "vit",
      .help = "patches as tokens, class token, pre-normalised transformer blocks; cross entropy",
      .source = "Dosovitskiy et al., ICLR 2021",
      .default_data = "shapes",
      .sizes = {{"layers", 4, "blocks", kMostLayers},
                {"width", 128, "channels"},
                {"heads", 4, "attention heads"},
                {"patch", 4, "side of a patch in pixels"},
                {"dropout", 0.1, "rate"}},
      .build = &build,
      .init = &init};
}

}  // namespace lockstep
