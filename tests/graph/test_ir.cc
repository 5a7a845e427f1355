// Value ids, look-ups, the builder's names and shapes, and what validate() refuses.
#include <doctest/doctest.h>

#include <functional>

#include "src/core/error.h"
#include "src/graph/autodiff.h"
#include "src/graph/infer.h"
#include "src/graph/validate.h"
#include "tests/graph/example_graphs.h"
#include "tests/support/refusal.h"

namespace lockstep {
namespace {

using testing::tiny_cnn;

TEST_CASE("roles: every role is found by its name") {
  for (int i = 0; i <= static_cast<int>(Role::kLoss); ++i) {
    const Role role = static_cast<Role>(i);
    CHECK(find_role(to_string(role)) == role);
  }
  CHECK(to_string(Role::kGradWeight) == "grad_weight");
  CHECK_THROWS_WITH_AS(find_role("grad_weigth"), doctest::Contains("did you mean 'grad_weight'?"),
                       InputError);
}

TEST_CASE("value ids: only node ids have a slot") {
  using Split = std::pair<std::string, int>;
  CHECK(split_value_id("n12") == Split{"n12", 0});
  CHECK(split_value_id("n12.1") == Split{"n12", 1});
  CHECK(split_value_id("p:n1.2") == Split{"p:n1.2", 0});
  CHECK(split_value_id("p:conv1.weight") == Split{"p:conv1.weight", 0});
  CHECK(split_value_id("n12.x") == Split{"n12.x", 0});
  CHECK(split_value_id("name.1") == Split{"name.1", 0});
}

TEST_CASE("look-ups: types, producers, parameters") {
  const Graph graph = tiny_cnn();
  CHECK(graph.type_of("in0") == TensorType{{2, 1, 4, 4}});
  CHECK(graph.type_of("p:fc1.weight") == TensorType{{3, 8}});
  CHECK(graph.type_of("b:bn1.running_var") == TensorType{{2}});
  CHECK(graph.type_of("n3.1") == TensorType{{2, 2, 2, 2}, ElementType::kInt});
  CHECK(graph.producer_of("n1.4") == &graph.nodes[1]);
  CHECK(graph.producer_of("n1.5") == nullptr);
  CHECK(graph.producer_of("in0") == nullptr);
  CHECK(graph.parameter_of("p:conv1.bias") == &graph.parameters[1]);
  CHECK(graph.parameter_of("conv1.bias") == nullptr);
  for (const char* unknown : {"n3.2", "n99", "p:fc2.weight", "b:bn1", "in7", ""}) {
    CHECK_THROWS_AS(graph.type_of(unknown), std::out_of_range);
  }
  CHECK_THROWS_AS(graph.node("n99"), std::out_of_range);
  CHECK(to_string(graph.type_of("n3.1")) == "i32[2, 2, 2, 2]");
}

TEST_CASE("builder: parameters have the names and shapes of torch.nn") {
  const Graph graph = tiny_cnn();
  std::vector<std::string> names;
  for (const Parameter& p : graph.parameters) names.push_back(p.name);
  CHECK(names == std::vector<std::string>{"conv1.weight", "conv1.bias", "bn1.weight", "bn1.bias",
                                          "fc1.weight", "fc1.bias"});
  CHECK(graph.parameters[0].type == TensorType{{2, 1, 3, 3}});
  CHECK(graph.parameters[0].layer == "conv1");
  CHECK(graph.mutations.size() == 2);
  CHECK(graph.mutations[1].buffer == "bn1.running_var");
  CHECK(graph.mutations[1].value == "n1.2");
  CHECK(graph.outputs.at("logits") == "n5");
  CHECK(layer_of(graph, graph.nodes.back()) == "cross_entropy");

  GraphBuilder b("bad");
  const Value x = b.input("x", {{2, 3}});
  CHECK_THROWS_WITH_AS(b.conv2d("conv1", x, 4, 3), doctest::Contains("must be (N,C,H,W)"),
                       InputError);
}

// The problems that validate() finds after `spoil` has changed a good step graph.
std::string problems_after(const std::function<void(Graph&)>& spoil) {
  Graph graph = differentiate(tiny_cnn());
  spoil(graph);
  return testing::error_of([&] { validate(graph); });
}

TEST_CASE("validate: a good graph passes, every kind of fault is named") {
  CHECK(problems_after([](Graph&) {}) == "");
  const auto check = [](const std::function<void(Graph&)>& spoil, const char* expected) {
    CAPTURE(expected);
    const std::string problems = problems_after(spoil);
    CAPTURE(problems);
    CHECK(problems.find(expected) != std::string::npos);
  };
  check([](Graph& g) { g.nodes[2].id = "n1"; }, "value 'n1': defined twice");
  check([](Graph& g) { g.nodes[2].id = "relu"; }, "must be named n<NUMBER>");
  check([](Graph& g) { g.inputs[0].id = "images"; }, "must be named in<NUMBER>, seed or seed:");
  check([](Graph& g) { std::swap(g.nodes[2], g.nodes[3]); },
        "value 'n2' is not defined before its use");
  check([](Graph& g) { g.nodes[2].inputs.push_back("n1"); }, "has 2 operands, must have 1");
  check([](Graph& g) { g.nodes[0].attributes["strid"] = int64_t{1}; }, "did you mean 'stride'?");
  check([](Graph& g) { g.nodes[2].op = "rele"; }, "op 'rele': unknown");
  check(
      [](Graph& g) {
        g.nodes[5].outputs[0].shape = {2, 4};
      },
      "output 0 is f32[2, 4], its op gives f32[2, 3]");
  check([](Graph& g) { g.nodes[3].outputs.pop_back(); }, "has 1 outputs, its op gives 2");
  check([](Graph& g) { g.parameters[0].type.shape[0] = 0; }, "every extent must be at least 1");
  check([](Graph& g) { g.parameters[0].type.element = ElementType::kInt; }, "must be floating");
  check([](Graph& g) { g.loss = "n5"; }, "must be a floating scalar, is f32[2, 3]");
  check([](Graph& g) { g.outputs["logits"] = "n77"; }, "output 'logits': value 'n77'");
  check([](Graph& g) { g.mutations[0].value = "n0"; }, "must be f32[2]");
  check([](Graph& g) { g.mutations[0].buffer = "nope"; }, "value 'b:nope' is not defined");
  check([](Graph& g) { g.gradients["fc1.bias"] = g.gradients["fc1.weight"]; },
        "gradient of parameter 'fc1.bias'");
  check([](Graph& g) { g.nodes.back().forward_node = "n99"; }, "is not an earlier forward node");
  check([](Graph& g) { g.nodes.back().gradient_of.push_back(""); }, "must have one per output");
  check([](Graph& g) { g.nodes.back().gradient_of[0] = "n0"; }, "the gradient of 'n0' must be");
  check([](Graph& g) { g.nodes[0].gradient_of = {"in0"}; }, "has gradient_of but no forward_node");
  check([](Graph& g) { g.nodes.back().pass = 1; }, "backward pass 1, the graph has 1");
  const auto add_pass = [](Graph& g) -> BackwardPass& {
    return g.passes.emplace_back(
        BackwardPass{"all", g.loss, std::string(kLossSeedId), g.gradients});
  };
  check([&](Graph& g) { add_pass(g).loss = "n5"; }, "backward pass 'all': loss 'n5': must be a");
  check([&](Graph& g) { add_pass(g).seed = "in0"; }, "seed 'in0': must be named seed:<LOSS>");
  check([&](Graph& g) { add_pass(g).gradients["fc1.bias"] = g.gradients["fc1.weight"]; },
        "backward pass 'all', gradient of parameter 'fc1.bias'");
}

TEST_CASE("validate: all problems at once") {
  Graph graph = tiny_cnn();
  graph.loss = "n99";
  graph.nodes[2].op = "rele";
  graph.outputs["x"] = "n98";
  try {
    validate(graph);
    FAIL("accepted");
  } catch (const InputError& error) {
    CHECK(error.problems().size() == 3);
  }
}

}  // namespace
}  // namespace lockstep
