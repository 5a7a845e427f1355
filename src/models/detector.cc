// A single-shot detector: a small backbone, two grids of anchors, and on each a head for classes
// and one for boxes. Its losses are means over all anchors, most of which are background: the
// and one for boxes. Its losses are means over all anchors, most of which are background, so the
// gradients that reach the backbone are small: the known difficulty of such networks in FP16.
// Source: W. Liu et al., "SSD: single shot multibox detector", ECCV 2016; without its hard negative
#include "src/core/error.h"
#include "src/data/anchors.h"
#include "src/models/model_rows.h"

namespace lockstep {
namespace {

constexpr int64_t kBoxNumbers = 4;

Value stage(GraphBuilder& b, const std::string& name, Value x, int64_t channels, int64_t stride) {
  x = b.conv2d(name + ".conv", x, channels, 3, stride, 1, /*bias=*/false);
  return b.relu(name + ".relu", b.batch_norm(name + ".bn", x));
}

// (N,K,H,W) -> (N, H W, K): the anchors' order.
Value by_anchor(GraphBuilder& b, const std::string& name, const Value& x) {
  const Shape s = b.shape_of(x);
  return b.reshape(name, b.permute(name, x, {0, 2, 3, 1}), {s[0], s[2] * s[3], s[1]});
}

Graph build(const ModelShape& shape, bool training) {
  GraphBuilder b("detector");
  const Value images = add_images(b, shape);
  if (shape.image[1] != 32 || shape.image[2] != 32) {
    throw InputError("model 'detector': images are " + to_string(shape.image) +
                     ", must be 32x32 pixels: its anchors are made for these");
  }
  const int64_t rows = shape.batch * kAnchorCount;
  const Value labels = add_labels(b, {rows});
  const Value boxes = b.input("boxes", {{rows, kBoxNumbers}, ElementType::kFloat});
  const Value mask = b.input("box_mask", {{rows, kBoxNumbers}, ElementType::kFloat});
  const int64_t width = shape.whole("width");

  Value x = stage(b, "stage1", images, width, 2);  // (N,16,16,16)
  x = stage(b, "stage2", x, 2 * width, 2);         // (N,32,8,8)
  const Value fine = stage(b, "stage3", x, 4 * width, 1);
  const Value coarse = stage(b, "stage4", fine, 4 * width, 2);  // (N,64,4,4)

  std::vector<Value> classes, offsets;
  for (const auto& [name, features] : {std::pair{"fine", fine}, std::pair{"coarse", coarse}}) {
    const std::string head = std::string("head.") + name;
    classes.push_back(
        by_anchor(b, head + ".class", b.conv2d(head + ".class", features, shape.classes, 3, 1, 1)));
    offsets.push_back(
        by_anchor(b, head + ".box", b.conv2d(head + ".box", features, kBoxNumbers, 3, 1, 1)));
  }
  const Attributes along_anchors = {{"dim", int64_t{1}}};
  const Value logits =
      b.reshape("class", b.op("cat", classes, along_anchors, "class"), {rows, shape.classes});
  const Value offset =
      b.reshape("box", b.op("cat", offsets, along_anchors, "box"), {rows, kBoxNumbers});

  const Value class_loss = classify(b, "loss.class", logits, labels);
  const Value matched = b.op("mul", {offset, mask}, {}, "loss.box");
  const Value box_loss = b.op("smooth_l1_loss", {matched, boxes}, {}, "loss.box");
  b.name_output("loss/class", class_loss);
  b.name_output("loss/box", box_loss);
  return finish_model(b, b.op("add", {class_loss, box_loss}, {}, "loss"), training);
}

}  // namespace

Model detector_model() {
  return {.name = "detector",
          .help =
              "four convolution stages, class and box heads on an 8x8 and a 4x4 grid of anchors; "
              "cross entropy + smooth L1",
          .source = "Liu et al., ECCV 2016 (SSD), without hard negative mining",
          .default_data = "shapes",
          .task = Task::kDetection,
          .sizes = {{"width", 16, "channels of the first stage"}},
          .build = &build};
}

}  // namespace lockstep
