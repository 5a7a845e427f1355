// The table of built-in models and the helpers they share. Knows nothing of how a model is built.
// The order is that of `lockstep list models`; each file NAME.cc defines its row as NAME_model().
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/core/error.h"
#include "src/core/find_row.h"
#include "src/graph/infer.h"
#include "src/models/model_rows.h"

#define LOCKSTEP_MODELS(model)                                                              \
  model(mlp) model(lenet) model(resnet20) model(unet) model(detector) model(vae) model(vit) \
      model(gpt) model(bert) model(lstm)

namespace lockstep {

#define LOCKSTEP_DECLARE(name) Model name##_model();
LOCKSTEP_MODELS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

std::span<const Model> models() {
#define LOCKSTEP_ROW(name) name##_model(),
  static const Model kModels[] = {LOCKSTEP_MODELS(LOCKSTEP_ROW)};
#undef LOCKSTEP_ROW
  return kModels;
}

const Model& find_model(std::string_view name) {
  return find_row("model", name, models());
}

ModelSizes complete_sizes(const Model& model, const ModelSizes& given) {
  ModelSizes sizes;
  std::vector<std::string> names;
  for (const ModelSize& size : model.sizes) {
    sizes.emplace(size.name, size.value);
    names.emplace_back(size.name);
  }
  ProblemList problems("model '" + std::string(model.name) + "'");
  for (const auto& [name, value] : given) {
    const auto found = sizes.find(name);
    if (found != sizes.end()) {
      found->second = value;
      const ModelSize& row = *std::ranges::find(model.sizes, name, &ModelSize::name);
      if (value > row.most) {
        problems.add(fmt::format("size {} {}: must be at most {}", name, value, row.most));
      }
    } else {
      problems.add("size '" + name + "': unknown",
                   names.empty() ? "this model has no sizes" : did_you_mean(name, names));
    }
  }
  problems.throw_if_any();
  return sizes;
}

DataRequest data_request(const Model& model, const ModelSizes& sizes, uint64_t seed) {
  DataRequest request{model.task, 0, seed};
  if (sizes.contains("context")) {
    request.context = ModelShape{1, {}, 1, sizes}.whole("context");
  }
  return request;
}

int64_t ModelShape::whole(std::string_view size) const {
  const double value = sizes.at(std::string(size));
  if (!(value >= 1 && value <= kLargestSize) || value != std::floor(value)) {
    throw InputError(
        fmt::format("size {} {}: must be an integer in 1..{}", size, value, kLargestSize));
  }
  return static_cast<int64_t>(value);
}

double ModelShape::rate(std::string_view size) const {
  const double value = sizes.at(std::string(size));
  if (!(value >= 0 && value < 1)) {
    throw InputError(fmt::format("size {} {}: must be in [0, 1)", size, value));
  }
  return value;
}

Value add_images(GraphBuilder& builder, const ModelShape& shape) {
  if (shape.image.size() != 3) {
    throw InputError("image shape " + to_string(shape.image) + ": must have 3 extents (C, H, W)");
  }
  return builder.input("images", {{shape.batch, shape.image[0], shape.image[1], shape.image[2]},
                                  ElementType::kFloat});
}

Value add_tokens(GraphBuilder& builder, const ModelShape& shape, int64_t context) {
  return builder.input("tokens", {{shape.batch, context}, ElementType::kInt});
}

Value add_labels(GraphBuilder& builder, Shape shape) {
  return builder.input("labels", {std::move(shape), ElementType::kInt});
}

Value classify(GraphBuilder& builder, const std::string& layer, const Value& logits,
               const Value& labels) {
  builder.name_output("logits", logits);
  builder.name_output("labels", labels);
  return builder.op("cross_entropy", {logits, labels}, {}, layer);
}

namespace {

// The effect of model.eval() on a graph: batch_norm reads its running statistics without changing
// them, dropout passes its input on. Some ops then save less.
void set_evaluation_mode(Graph& graph) {
  for (Node& node : graph.nodes) {
    const auto training = node.attributes.find("training");
    if (training == node.attributes.end()) continue;
    training->second = false;
    std::vector<TensorType> inputs;
    for (const std::string& input : node.inputs) inputs.push_back(graph.type_of(input));
    node.outputs = infer_outputs(node, inputs);
  }
  graph.mutations.clear();
}

}  // namespace

Graph finish_model(GraphBuilder& builder, const Value& loss, bool training) {
  builder.set_loss(loss);
  Graph graph = builder.finish();
  if (!training) set_evaluation_mode(graph);
  return graph;
}

}  // namespace lockstep
