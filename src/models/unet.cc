// A small U-Net: two levels down, two up, a class per pixel.
// Source: O. Ronneberger et al., "U-Net", MICCAI 2015, figure 1; here with batch_norm and padding,
// so that output and input have equal extents.
#include "src/core/error.h"
#include "src/models/model_rows.h"

namespace lockstep {
namespace {

Value two_convolutions(GraphBuilder& b, const std::string& name, Value x, int64_t channels) {
  for (const std::string i : {"1", "2"}) {
    x = b.conv2d(name + ".conv" + i, x, channels, 3, 1, 1, /*bias=*/false);
    x = b.relu(name + ".relu" + i, b.batch_norm(name + ".bn" + i, x));
  }
  return x;
}

Graph build(const ModelShape& shape, bool training) {
  GraphBuilder b("unet");
  const Value images = add_images(b, shape);
  if (shape.image[1] % 4 != 0 || shape.image[2] % 4 != 0) {
    throw InputError("model 'unet': images are " + to_string(shape.image) +
                     ", height and width must be multiples of 4");
  }
  const Value labels = add_labels(b, {shape.batch, shape.image[1], shape.image[2]});
  const int64_t width = shape.whole("width");

  const Value wide = two_convolutions(b, "down1", images, width);  // (N,16,32,32)
  const Value half =
      two_convolutions(b, "down2", b.max_pool2d("pool1", wide, 2, 2), 2 * width);  // (N,32,16,16)
  Value x = two_convolutions(b, "bottom", b.max_pool2d("pool2", half, 2, 2), 4 * width);
  x = b.conv_transpose2d("up2.up", x, 2 * width, 2, 2);  // (N,32,16,16)
  x = two_convolutions(b, "up2", b.op("cat", {half, x}, {{"dim", int64_t{1}}}, "up2.cat"),
                       2 * width);
  x = b.conv_transpose2d("up1.up", x, width, 2, 2);  // (N,16,32,32)
  x = two_convolutions(b, "up1", b.op("cat", {wide, x}, {{"dim", int64_t{1}}}, "up1.cat"), width);
  x = b.conv2d("head", x, shape.classes, 1);
  return finish_model(b, classify(b, "loss", x, labels), training);
}

}  // namespace

Model unet_model() {
  return {.name = "unet",
          .help =
              "two levels of convolutions down and up with skip connections; a class per pixel, "
              "cross entropy",
          .source = "Ronneberger et al., MICCAI 2015, with batch_norm and padding",
          .default_data = "shapes",
          .task = Task::kSegmentation,
          .sizes = {{"width", 16, "channels of the first level"}},
          .build = &build};
}

}  // namespace lockstep
