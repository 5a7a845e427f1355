// The table of built-in models and what they share. Knows nothing of how a model is built.

#include "src/core/error.h"
#include "src/train/models/model_rows.h"

namespace lockstep {

std::span<const Model> models() {
  static const Model kModels[] = {mlp_model(), lenet_model()};
  return kModels;
}

const Model& find_model(std::string_view name) {
  std::vector<std::string> names;
  for (const Model& model : models()) {
    if (model.name == name) return model;
    names.emplace_back(model.name);
  }
  throw InputError("model '" + std::string(name) + "': unknown", did_you_mean(name, names));
}

ImageInputs add_image_inputs(GraphBuilder& builder, const ModelShape& shape) {
  if (shape.image.size() != 3) {
    throw InputError("image shape " + to_string(shape.image) + ": must have 3 extents (C, H, W)");
  }
  const Shape images = {shape.batch, shape.image[0], shape.image[1], shape.image[2]};
  return {builder.input("images", {images, ElementType::kFloat}),
          builder.input("labels", {{shape.batch}, ElementType::kInt})};
}

namespace {

// What model.eval() means for a graph: batch_norm reads its running statistics and leaves them.
void set_evaluation_mode(Graph& graph) {
  for (Node& node : graph.nodes) {
    if (node.op == "batch_norm") node.attributes["training"] = false;
  }
  graph.mutations.clear();
}

}  // namespace

Graph finish_classifier(GraphBuilder& builder, const Value& logits, const Value& labels,
                        bool training) {
  builder.name_output("logits", logits);
  builder.set_loss(builder.op("cross_entropy", {logits, labels}, {}, "loss"));
  Graph graph = builder.finish();
  if (!training) set_evaluation_mode(graph);
  return graph;
}

}  // namespace lockstep
