// A LeNet-5 style CNN with batch normalisation: the smallest network in which convolution, batch
// statistics, pooling and linear layers all run in low precision.
// Source: Y. LeCun et al., "Gradient-based learning applied to document recognition", Proc. IEEE
// 86(11), 1998, figure 2; here with ReLU, max pooling, batch_norm and full channel connections.
#include "src/models/model_rows.h"

namespace lockstep {
namespace {

Graph build(const ModelShape& shape, bool training) {
  GraphBuilder b("lenet");
  const Value images = add_images(b, shape);  // (N,C,H,W)
  const Value labels = add_labels(b, {shape.batch});

  // Shapes for 28x28 digits.
  Value x = b.conv2d("conv1", images, 6, /*kernel=*/5, /*stride=*/1, /*padding=*/2);
  x = b.relu("relu1", b.batch_norm("bn1", x));               // (N,6,28,28)
  x = b.max_pool2d("pool1", x, /*kernel=*/2, /*stride=*/2);  // (N,6,14,14)
  x = b.conv2d("conv2", x, 16, /*kernel=*/5);                // (N,16,10,10)
  x = b.relu("relu2", b.batch_norm("bn2", x));
  x = b.max_pool2d("pool2", x, /*kernel=*/2, /*stride=*/2);  // (N,16,5,5)
  x = b.flatten("flatten", x);                               // (N,400)
  x = b.relu("relu3", b.linear("fc1", x, 120));
  x = b.relu("relu4", b.linear("fc2", x, 84));
  x = b.linear("fc3", x, shape.classes);

  return finish_model(b, classify(b, "loss", x, labels), training);
}

}  // namespace

Model lenet_model() {
  return {.name = "lenet",
          .help =
              "conv1 6@5x5, bn1, relu, pool, conv2 16@5x5, bn2, relu, pool, fc1 120, fc2 84, "
              "fc3 classes; cross entropy",
          .source = "LeCun et al., Proc. IEEE 1998, with batch_norm",
          .default_data = "synthetic",
          .build = &build};
}

}  // namespace lockstep
