// The smallest network worth replaying: three linear layers, 784-128-64-classes on digits.
// Twin in torch.nn: Sequential of Flatten, fc1, ReLU, fc2, ReLU, fc3 under these attribute names.
#include "src/graph/builder.h"
#include "src/train/models/model_rows.h"

namespace lockstep {
namespace {

constexpr int64_t kHidden1 = 128;
constexpr int64_t kHidden2 = 64;

Graph build(const ModelShape& shape, bool training) {
  GraphBuilder b("mlp");
  const ImageInputs in = add_image_inputs(b, shape);  // images (N,C,H,W), labels (N)

  Value x = b.flatten("flatten", in.images);  // (N, C*H*W)
  x = b.relu("relu1", b.linear("fc1", x, kHidden1));
  x = b.relu("relu2", b.linear("fc2", x, kHidden2));
  x = b.linear("fc3", x, shape.classes);  // (N, classes)

  return finish_classifier(b, x, in.labels, training);
}

}  // namespace

Model mlp_model() {
  return {"mlp", "flatten, fc1 128, relu, fc2 64, relu, fc3 classes; cross entropy", "synthetic",
          &build};
}

}  // namespace lockstep
