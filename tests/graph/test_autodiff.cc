// The step graph: values used several times, joins, skipped gradients, numbering, partners; and
// complete networks against central differences.
#include "src/graph/autodiff.h"

#include <doctest/doctest.h>

#include "src/core/error.h"
#include "src/graph/infer.h"
#include "src/graph/validate.h"
#include "tests/graph/example_graphs.h"
#include "tests/graph/run_graph.h"

namespace lockstep {
namespace {

using testing::gradient_error;
using testing::kGradientTolerance;

TEST_CASE("complete networks: gradients against central differences") {
  CHECK(gradient_error(testing::tiny_cnn()) <= kGradientTolerance);
  CHECK(gradient_error(testing::two_consumers()) <= kGradientTolerance);
}

TEST_CASE("hand-checked: loss = mean((w w - t)^2), both operands the same value") {
  GraphBuilder b("square");
  const Value w = b.parameter("w", {2});
  b.set_loss(b.op("mse_loss", {b.op("mul", {w, w}, {}, ""), b.input("t", {{2}})}, {}, ""));
  const Graph step = differentiate(b.finish());
  testing::Values values = testing::make_values(step, 1);
  values["p:w"] = Tensor::from<double>({2}, {2, 3});
  values["in0"] = Tensor::from<double>({2}, {3, 10});
  values = testing::run_graph(step, values);
  // d/dw = (w^2 - t) 2/2 2w:  (4 - 3) 4 = 4,  (9 - 10) 6 = -6
  const auto gradient = values.at(step.gradients.at("w")).as<double>();
  CHECK(gradient[0] == 4);
  CHECK(gradient[1] == -6);
  CHECK(values.at(step.loss).as<double>()[0] == 1);
}

TEST_CASE("an input that requires a gradient gets one, and no other does") {
  GraphBuilder b("part");
  const Value x = b.input("x", {{2}}), w = b.parameter("w", {2});
  b.set_loss(b.op("mse_loss", {b.op("mul", {x, w}, {}, ""), b.input("t", {{2}})}, {}, ""));
  Graph forward = b.finish();
  CHECK_FALSE(differentiate(forward).adjoints.contains("in0"));
  forward.inputs[0].requires_grad = true;
  const Graph step = differentiate(forward);
  CHECK_FALSE(step.adjoints.contains("in1"));
  testing::Values values = testing::make_values(step, 1);
  values["in0"] = Tensor::from<double>({2}, {2, 3});
  values["p:w"] = Tensor::from<double>({2}, {5, 7});
  values["in1"] = Tensor::from<double>({2}, {9, 22});
  values = testing::run_graph(step, values);
  // d/dx = (w x - t) 2/2 w:  (10 - 9) 5 = 5,  (21 - 22) 7 = -7
  const auto gradient = values.at(step.adjoints.at("in0")).as<double>();
  CHECK(gradient[0] == 5);
  CHECK(gradient[1] == -7);
}

TEST_CASE("the seed scales every gradient: a power of two changes no other bit") {
  const Graph step = differentiate(testing::tiny_cnn());
  testing::Values given = testing::make_values(step, 3);
  const testing::Values one = testing::run_graph(step, given);
  constexpr double kScale = 0x1p16;
  given[std::string(kLossSeedId)] = Tensor::from<double>({}, {kScale});
  const testing::Values scaled = testing::run_graph(step, given);
  for (const auto& [parameter, value] : step.gradients) {
    CAPTURE(parameter);
    const auto g = one.at(value).as<double>(), s = scaled.at(value).as<double>();
    double largest = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      CHECK(s[i] == kScale * g[i]);
      largest = std::max(largest, std::fabs(g[i]));
    }
    CHECK(largest > 0);
  }
}

TEST_CASE("joins: one add per further use, with the place and layer of the value's producer") {
  const Graph step = differentiate(testing::two_consumers());
  validate(step);
  std::vector<const Node*> joins;
  for (const Node& node : step.nodes) {
    if (node.is_backward() && node.op == "add") joins.push_back(&node);
  }
  REQUIRE(joins.size() == 2);
  // The weight comes first: the backward pass starts at the last layer.
  const Node& weight = *joins[0];
  CHECK(weight.gradient_of == std::vector<std::string>{"p:tied.weight"});
  CHECK(weight.layer == "tied");
  CHECK(weight.forward_node == "n3");                                // its first consumer
  CHECK(step.producer_of(weight.inputs[0])->layer == "tied_again");  // last use first
  CHECK(step.producer_of(weight.inputs[1])->layer == "tied");
  CHECK(step.gradients.at("tied.weight") == weight.id);
  const Node& hidden = *joins[1];
  CHECK(hidden.gradient_of == std::vector<std::string>{"n0"});
  CHECK(hidden.layer == "fc1");
  CHECK(hidden.forward_node == "n0");
  // dy of the residual add goes straight to h; relu's part joins it.
  CHECK(step.producer_of(hidden.inputs[0])->gradient_of[0] == "n2");
  CHECK(step.producer_of(hidden.inputs[1])->op == "relu_backward");
}

TEST_CASE("numbering, partners, layers: forward first, every backward node names its partner") {
  const Graph forward = testing::tiny_cnn();
  const Graph step = differentiate(forward);
  REQUIRE(step.nodes.size() > forward.nodes.size());
  for (size_t i = 0; i < step.nodes.size(); ++i) {
    const Node& node = step.nodes[i];
    CHECK(node.id == "n" + std::to_string(i));
    CHECK(node.is_backward() == (i >= forward.nodes.size()));
    if (!node.is_backward()) continue;
    CHECK(node.layer == layer_of(step, step.node(node.forward_node)));
    CHECK(node.gradient_of.size() == node.outputs.size());
  }
  CHECK(step.inputs.back().id == kLossSeedId);
  CHECK(step.inputs.back().type == TensorType{});
  CHECK(step.nodes[forward.nodes.size()].op == "cross_entropy_backward");
  CHECK(step.nodes[forward.nodes.size()].layer == "cross_entropy");
}

TEST_CASE("skipped: gradients of inputs, frozen parameters and values the loss does not need") {
  const Graph step = differentiate(testing::tiny_cnn());
  for (const Node& node : step.nodes) {
    CHECK(node.op != "conv2d_backward_input");  // it would only reach the images
  }
  Graph frozen = testing::tiny_cnn();
  for (Parameter& p : frozen.parameters) p.requires_grad = p.layer == "fc1";
  const Graph head = differentiate(frozen);
  CHECK(head.gradients.size() == 2);
  for (const Node& node : head.nodes) {
    if (node.is_backward()) CHECK((node.layer == "fc1" || node.layer == "cross_entropy"));
  }
  GraphBuilder b("unused");
  const Value w = b.parameter("w", {2});
  b.parameter("unused", {2});
  b.relu("aside", w);
  b.set_loss(b.op("mse_loss", {w, b.input("t", {{2}})}, {}, ""));
  const Graph partial = differentiate(b.finish());
  CHECK(partial.gradients.size() == 1);
  CHECK(partial.gradients.contains("w"));
  CHECK(partial.nodes.size() == 3);  // relu, mse_loss, mse_loss_backward
}

TEST_CASE("skipped: the image's parts of a gradient are not joined") {
  GraphBuilder b("images_twice");
  const Value x = b.input("images", {{4, 2}});
  const Value y = b.op("add", {b.batch_norm("bn1", x), b.batch_norm("bn2", x)}, {}, "sum");
  b.set_loss(b.op("mse_loss", {y, b.input("t", {{4, 2}})}, {}, ""));
  const Graph step = differentiate(b.finish());
  CHECK(step.gradients.size() == 4);
  for (const Node& node : step.nodes) {
    if (node.is_backward()) CHECK(node.op != "add");
  }
}

TEST_CASE("a parameter added to a value has its own gradient node") {
  GraphBuilder b("bias");
  const Value h = b.relu("relu", b.parameter("w", {2, 3}));
  const Value y = b.op("add", {h, b.parameter("b", {2, 3})}, {}, "bias");
  b.set_loss(b.op("mse_loss", {y, b.input("t", {{2, 3}})}, {}, ""));
  const Graph step = differentiate(b.finish());
  const Node* node = step.producer_of(step.gradients.at("b"));
  REQUIRE(node != nullptr);
  CHECK(node->op == "sum_to");
  CHECK(node->gradient_of[0] == "p:b");
}

TEST_CASE("a pass per loss: the gradients add up to those of the total loss") {
  const Graph joint = differentiate(testing::two_losses());
  const Graph step = differentiate_per_loss(testing::two_losses());
  validate(step);
  REQUIRE(step.passes.size() == 2);
  CHECK(step.passes[0].name == "far");  // in the order of their names
  CHECK(step.passes[1].name == "near");
  CHECK(pass_count(joint) == 1);
  testing::Values given = testing::make_values(joint, 1);
  const testing::Values whole = testing::run_graph(joint, given);
  for (const BackwardPass& pass : step.passes) given[pass.seed] = Tensor::from<double>({}, {1.0});
  const testing::Values parts = testing::run_graph(step, given);
  for (const auto& [parameter, value] : joint.gradients) {
    CAPTURE(parameter);
    const auto expected = whole.at(value).as<double>();
    std::vector<double> sum(expected.size(), 0);
    size_t reached = 0;
    for (const BackwardPass& pass : step.passes) {
      const auto found = pass.gradients.find(parameter);
      if (found == pass.gradients.end()) continue;
      const auto part = parts.at(found->second).as<double>();
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      ++reached;
    }
    CHECK(reached == (parameter == "trunk.weight" ? 2 : 1));
    double largest = 0, apart = 0;
    for (size_t i = 0; i < sum.size(); ++i) {
      largest = std::max(largest, std::fabs(expected[i]));
      apart = std::max(apart, std::fabs(sum[i] - expected[i]));
    }
    CHECK(largest > 0);
    CHECK(apart <= 1e-12 * largest);
  }
}

TEST_CASE("a pass per loss: each starts from its own seed, and its nodes carry its number") {
  const Graph step = differentiate_per_loss(testing::two_losses());
  testing::Values given = testing::make_values(step, 1);
  const auto run = [&](double far, double near) {
    given["seed:far"] = Tensor::from<double>({}, {far});
    given["seed:near"] = Tensor::from<double>({}, {near});
    return testing::run_graph(step, given);
  };
  const testing::Values one = run(1, 1), scaled = run(0x1p9, 0x1p-3);
  for (size_t k = 0; k < step.passes.size(); ++k) {
    for (const auto& [parameter, value] : step.passes[k].gradients) {
      const auto a = one.at(value).as<double>(), b = scaled.at(value).as<double>();
      for (size_t i = 0; i < a.size(); ++i) CHECK(b[i] == a[i] * (k == 0 ? 0x1p9 : 0x1p-3));
      CHECK(step.producer_of(value)->pass == static_cast<int>(k));
    }
  }
  // No pass reads another's gradients.
  for (const Node& node : step.nodes) {
    for (const std::string& input : node.inputs) {
      const Node* producer = step.producer_of(input);
      if (!node.is_backward() || producer == nullptr || !producer->is_backward()) continue;
      CHECK(producer->pass == node.pass);
    }
  }
  CHECK_FALSE(step.passes[1].gradients.contains("head.far.weight"));
}

TEST_CASE("a pass per loss is refused if the loss is not a sum of named ones") {
  CHECK_THROWS_WITH_AS(differentiate_per_loss(testing::tiny_cnn()),
                       doctest::Contains("named here: none"), InputError);
  Graph graph = testing::two_losses();
  graph.outputs.erase("loss/far");
  CHECK_THROWS_WITH_AS(differentiate_per_loss(graph), doctest::Contains("named here: near"),
                       InputError);
  graph = testing::two_losses();
  for (Node& node : graph.nodes) {  // far + 0.5 near
    if (node.id == graph.loss) node.attributes["alpha"] = 0.5;
  }
  CHECK_THROWS_AS(differentiate_per_loss(graph), InputError);
  graph = testing::two_losses();
  graph.outputs["loss/again"] = graph.outputs.at("loss/far");  // one value under two names
  CHECK_THROWS_AS(differentiate_per_loss(graph), InputError);
  graph = testing::two_losses();
  graph.loss = graph.outputs.at("loss/far");  // near is named, but not part of it
  CHECK_THROWS_WITH_AS(differentiate_per_loss(graph), doctest::Contains("named here: far, near"),
                       InputError);
}

TEST_CASE("refused: no loss, a vector loss, a second differentiation, an op without a gradient") {
  Graph graph = testing::tiny_cnn();
  graph.loss = "";
  CHECK_THROWS_WITH_AS(differentiate(graph), doctest::Contains("loss must be"), InputError);
  graph.loss = "n5";
  CHECK_THROWS_WITH_AS(differentiate(graph), doctest::Contains("scalar"), InputError);
  CHECK_THROWS_WITH_AS(differentiate(differentiate(testing::tiny_cnn())),
                       doctest::Contains("already has backward nodes"), InputError);
  GraphBuilder b("no_gradient");
  const Value x = b.op("sum_to", {b.parameter("w", {2})}, {{"shape", Shape{}}}, "");
  b.set_loss(x);
  CHECK_THROWS_WITH_AS(differentiate(b.finish()), doctest::Contains("has no gradient"), InputError);
  GraphBuilder saved("saved");
  const Value y = saved.batch_norm("bn", saved.linear("fc", saved.input("x", {{4, 2}}), 3));
  const Value mean = output_id(saved.graph().node(y), 3);
  saved.set_loss(saved.op("mse_loss", {mean, saved.input("t", {{3}})}, {}, ""));
  CHECK_THROWS_WITH_AS(differentiate(saved.finish()),
                       doctest::Contains("no gradient flows through output 3"), InputError);
}

}  // namespace
}  // namespace lockstep
