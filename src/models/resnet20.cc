// ResNet-20 for 32x32 images: three stages of three basic blocks, shortcuts without parameters.
// Source: K. He et al., "Deep residual learning for image recognition", CVPR 2016, section 4.2;
// where the shape changes the shortcut takes every second pixel and adds zero channels (option A).
#include "src/models/model_rows.h"

namespace lockstep {
namespace {

constexpr int kStages = 3, kBlocksPerStage = 3;

// x (N,C,H,W) -> (N,2C,H/2,W/2): half of the new channels before, half after.
Value shrink(GraphBuilder& b, const std::string& layer, Value x, int64_t new_channels) {
  const Shape s = b.shape_of(x);
  x = b.slice(layer, x, 2, 0, s[2], 2);
  x = b.slice(layer, x, 3, 0, s[3], 2);
  const int64_t before = (new_channels - s[1]) / 2, behind = new_channels - s[1] - before;
  return b.op("pad", {x}, {{"pads", Shape{0, 0, 0, 0, before, behind}}, {"value", 0.0}}, layer);
}

Value block(GraphBuilder& b, const std::string& name, const Value& x, int64_t channels,
            int64_t stride) {
  Value y = b.conv2d(name + ".conv1", x, channels, 3, stride, 1, /*bias=*/false);
  y = b.relu(name + ".relu1", b.batch_norm(name + ".bn1", y));
  y = b.conv2d(name + ".conv2", y, channels, 3, 1, 1, /*bias=*/false);
  y = b.batch_norm(name + ".bn2", y);
  const Value shortcut = stride == 1 ? x : shrink(b, name + ".shortcut", x, channels);
  return b.relu(name + ".relu2", b.op("add", {y, shortcut}, {}, name + ".add"));
}

Graph build(const ModelShape& shape, bool training) {
  GraphBuilder b("resnet20");
  const Value images = add_images(b, shape);
  const Value labels = add_labels(b, {shape.batch});
  const int64_t width = shape.whole("width");

  Value x = b.conv2d("conv1", images, width, 3, 1, 1, /*bias=*/false);
  x = b.relu("relu1", b.batch_norm("bn1", x));  // (N,16,32,32)
  for (int stage = 0; stage < kStages; ++stage) {
    for (int i = 0; i < kBlocksPerStage; ++i) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i);
      x = block(b, name, x, width << stage, stage > 0 && i == 0 ? 2 : 1);
    }
  }
  x = b.op("adaptive_avg_pool2d", {x}, {{"size", Shape{1, 1}}}, "pool");  // (N,64,1,1)
  x = b.linear("fc", b.flatten("flatten", x), shape.classes);
  return finish_model(b, classify(b, "loss", x, labels), training);
}

std::vector<InitRule> init(const ModelSizes&) {
  return {{"*conv*.weight", InitKind::kKaimingNormal}, {"fc.weight", InitKind::kKaimingNormal}};
}

}  // namespace

Model resnet20_model() {
  return {
      .name = "resnet20",
      .help = "conv1, 3 stages of 3 basic blocks (16, 32, 64 channels), pool, fc; cross entropy",
      .source = "He et al., CVPR 2016, section 4.2, shortcuts of option A",
      .default_data = "shapes",
      .sizes = {{"width", 16, "channels of the first stage"}},
      .build = &build,
      .init = &init};
}

}  // namespace lockstep
