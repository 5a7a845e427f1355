// The built-in models are the networks of their papers, with torch.nn's names and initial weights.
#include <doctest/doctest.h>

#include "src/core/error.h"
#include "src/data/dataset.h"
#include "src/data/noise.h"
#include "src/data/sources.h"
#include "src/graph/validate.h"
#include "src/models/model.h"

using namespace lockstep;

namespace {

const ModelShape kDigits = {64, {1, 28, 28}, 10};

Graph digits_graph(std::string_view name, bool training = true) {
  const Model& model = find_model(name);
  ModelShape shape = kDigits;
  shape.sizes = complete_sizes(model, {});
  return model.build(shape, training);
}

using NamedShape = std::pair<std::string, Shape>;

template <typename Entries>
std::vector<NamedShape> named_shapes(const Entries& entries) {
  std::vector<NamedShape> result;
  for (const auto& entry : entries) result.emplace_back(entry.name, entry.type.shape);
  return result;
}

std::vector<std::string> layers_and_ops(const Graph& graph) {
  std::vector<std::string> result;
  for (const Node& node : graph.nodes) result.push_back(node.layer + " " + node.op);
  return result;
}

}  // namespace

TEST_CASE("lenet: parameters, buffers and layers as its torch.nn twin names them") {
  const Graph graph = digits_graph("lenet");
  CHECK(named_shapes(graph.parameters) == std::vector<NamedShape>{{"conv1.weight", {6, 1, 5, 5}},
                                                                  {"conv1.bias", {6}},
                                                                  {"bn1.weight", {6}},
                                                                  {"bn1.bias", {6}},
                                                                  {"conv2.weight", {16, 6, 5, 5}},
                                                                  {"conv2.bias", {16}},
                                                                  {"bn2.weight", {16}},
                                                                  {"bn2.bias", {16}},
                                                                  {"fc1.weight", {120, 400}},
                                                                  {"fc1.bias", {120}},
                                                                  {"fc2.weight", {84, 120}},
                                                                  {"fc2.bias", {84}},
                                                                  {"fc3.weight", {10, 84}},
                                                                  {"fc3.bias", {10}}});
  CHECK(named_shapes(graph.buffers) == std::vector<NamedShape>{{"bn1.running_mean", {6}},
                                                               {"bn1.running_var", {6}},
                                                               {"bn2.running_mean", {16}},
                                                               {"bn2.running_var", {16}}});
  CHECK(layers_and_ops(graph) ==
        std::vector<std::string>{"conv1 conv2d", "bn1 batch_norm", "relu1 relu", "pool1 max_pool2d",
                                 "conv2 conv2d", "bn2 batch_norm", "relu2 relu", "pool2 max_pool2d",
                                 "flatten reshape", "fc1 linear", "relu3 relu", "fc2 linear",
                                 "relu4 relu", "fc3 linear", "loss cross_entropy"});
  CHECK(graph.type_of(graph.outputs.at("logits")).shape == Shape{64, 10});
  CHECK(graph.type_of(graph.loss).shape == Shape{});
  CHECK(graph.mutations.size() == 4);
}

TEST_CASE("mlp: 784-128-64-10") {
  const Graph graph = digits_graph("mlp");
  CHECK(named_shapes(graph.parameters) == std::vector<NamedShape>{{"fc1.weight", {128, 784}},
                                                                  {"fc1.bias", {128}},
                                                                  {"fc2.weight", {64, 128}},
                                                                  {"fc2.bias", {64}},
                                                                  {"fc3.weight", {10, 64}},
                                                                  {"fc3.bias", {10}}});
  CHECK(graph.buffers.empty());
  CHECK(layers_and_ops(graph) == std::vector<std::string>{"flatten reshape", "fc1 linear",
                                                          "relu1 relu", "fc2 linear", "relu2 relu",
                                                          "fc3 linear", "loss cross_entropy"});
  CHECK(graph.type_of(graph.outputs.at("logits")).shape == Shape{64, 10});
}

TEST_CASE("every model: its default data fit its inputs, in training and evaluation") {
  REQUIRE(models().size() >= 10);
  for (const Model& model : models()) {
    CAPTURE(model.name);
    CHECK(&find_model(model.name) == &model);
    const ModelSizes sizes = complete_sizes(model, {});
    const auto data = open_data_set(std::string(model.default_data), data_request(model, sizes, 1));
    const ModelShape shape = {5, data->image_shape(), data->class_count(), sizes};
    const Batch drawn = data->gather(std::vector<int64_t>{0, 1, 2, 3, 4});
    for (const bool training : {true, false}) {
      const Graph graph = model.build(shape, training);
      CHECK(graph.name == model.name);
      Batch batch = drawn;
      add_noise(graph, 1, 0, batch);
      for (const GraphInput& input : graph.inputs) {
        CAPTURE(input.path);
        const Tensor& tensor = batch.at(input.path);
        CHECK(input.type.shape == tensor.shape());
        CHECK((input.type.element == ElementType::kInt) == (tensor.container() == Container::kI32));
      }
      validate(graph);
      CHECK(initial_state(model, sizes, graph, 1).size() ==
            graph.parameters.size() + graph.buffers.size());
    }
  }
}

TEST_CASE("sizes: defaults, given ones, and refused ones") {
  const Model& gpt = find_model("gpt");
  CHECK(complete_sizes(gpt, {{"layers", 2}}).at("layers") == 2);
  CHECK(complete_sizes(gpt, {}).at("layers") == 4);
  CHECK_THROWS_WITH_AS(complete_sizes(gpt, {{"layer", 2}}), doctest::Contains("'layers'"),
                       InputError);
  const auto build = [&](const ModelSizes& sizes) {
    return gpt.build({2, {}, 30, complete_sizes(gpt, sizes)}, true);
  };
  CHECK_THROWS_AS(build({{"layers", 0}}), InputError);
  CHECK_THROWS_AS(build({{"layers", 1.5}}), InputError);
  CHECK_THROWS_AS(build({{"dropout", 1}}), InputError);
  CHECK_THROWS_WITH_AS(build({{"heads", 3}}), doctest::Contains("must divide width"), InputError);
}

TEST_CASE("evaluation mode: batch_norm reads its running statistics without changing them") {
  const Graph training = digits_graph("lenet"), evaluation = digits_graph("lenet", false);
  CHECK(evaluation.mutations.empty());
  CHECK(named_shapes(evaluation.parameters) == named_shapes(training.parameters));
  int batch_norms = 0;
  for (const Node& node : evaluation.nodes) {
    if (node.op != "batch_norm") continue;
    ++batch_norms;
    CHECK(std::get<bool>(node.attributes.at("training")) == false);
    CHECK(std::get<bool>(training.node(node.id).attributes.at("training")) == true);
  }
  CHECK(batch_norms == 2);
}

TEST_CASE("models follow the image shape, and refuse one that does not fit") {
  const Graph cifar = find_model("lenet").build({8, {3, 32, 32}, 10}, true);
  CHECK(cifar.parameters[0].type.shape == Shape{6, 3, 5, 5});
  CHECK(cifar.type_of("p:fc1.weight").shape == Shape{120, 16 * 6 * 6});
  CHECK(cifar.type_of(cifar.outputs.at("logits")).shape == Shape{8, 10});
  CHECK_THROWS_AS(find_model("lenet").build({8, {1, 6, 6}, 10}, true), InputError);
  CHECK_THROWS_AS(
      find_model("mlp").build({8, {28, 28}, 10, complete_sizes(find_model("mlp"), {})}, true),
      InputError);
  CHECK_THROWS_WITH_AS(find_model("lent"), doctest::Contains("did you mean 'lenet'"), InputError);
}
