// The smallest useful network: three linear layers, on digits 784-128-64-classes.
// Twin in torch.nn: Sequential of Flatten, fc1, ReLU, fc2, ReLU, fc3 under these attribute names.
#include "src/models/model_rows.h"

namespace lockstep {
namespace {

Graph build(const ModelShape& shape, bool training) {
  GraphBuilder b("mlp");
  const Value images = add_images(b, shape);  // (N,C,H,W)
  const Value labels = add_labels(b, {shape.batch});

  Value x = b.flatten("flatten", images);  // (N, C*H*W)
  x = b.relu("relu1", b.linear("fc1", x, shape.whole("hidden1")));
  x = b.relu("relu2", b.linear("fc2", x, shape.whole("hidden2")));
  x = b.linear("fc3", x, shape.classes);  // (N, classes)

  return finish_model(b, classify(b, "loss", x, labels), training);
}

}  // namespace

Model mlp_model() {
  return {.name = "mlp",
          .help = "flatten, fc1, relu, fc2, relu, fc3 classes; cross entropy",
          .source = "-",
          .default_data = "synthetic",
          .sizes = {{"hidden1", 128, "outputs of fc1"}, {"hidden2", 64, "outputs of fc2"}},
          .build = &build};
}

}  // namespace lockstep
