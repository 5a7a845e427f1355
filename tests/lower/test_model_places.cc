// Which blocks, which head and which first layer a model has, and the rules that name them.
#include "src/lower/model_places.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "tests/lower/lowered.h"

namespace lockstep {
namespace {

// Three blocks between an embedding layer and a head; the block "h.1" has no weights of products.
Graph stack() {
  GraphBuilder b("stack");
  Value x = b.linear("embed", b.input("x", {{4, 6}}), 8);
  for (int i = 0; i < 4; ++i) {
    const std::string block = "h." + std::to_string(i);
    if (i == 1) {
      x = b.relu(block, x);
    } else {
      x = b.op(
          "add",
          {x, b.linear(block + ".fc2", b.relu(block + ".act", b.linear(block + ".fc1", x, 8)), 8)},
          {}, block);
    }
  }
  const Value y = b.linear("head", x, 3);
  b.set_loss(b.op("mse_loss", {y, b.input("target", {{4, 3}})}, {}, "loss"));
  return b.finish();
}

// The layers whose linear op runs in FP32 in a BF16 lane with this rule.
std::string fp32_layers(const Graph& graph, const std::string& place,
                        const std::string& more = "") {
  const Lowered net =
      lower_text(graph, "extends = 'torch-autocast-bf16:2.12'\n[[rule]]\nplace = '" + place +
                            "'\nop = 'linear'\ncompute = 'fp32'\n" + more);
  std::vector<std::string> found;
  for (const Instruction& i : net.program.instructions) {
    const Node& node = net.graph.nodes[i.node];
    if (i.kind != InstructionKind::kOp || node.op != "linear") continue;
    if (net.format(i.outputs[0]) == "fp32") found.push_back(node.layer);
  }
  return join(found, " ");
}

TEST_CASE("places: blocks are numbered modules with products of weights, in order") {
  const Graph graph = stack();
  CHECK(join(ModelPlaces(graph).blocks(), " ") == "h.0 h.2 h.3");
  CHECK(fp32_layers(graph, "first block") == "h.0.fc1 h.0.fc2");
  CHECK(fp32_layers(graph, "last 2 blocks") == "h.2.fc1 h.2.fc2 h.3.fc1 h.3.fc2");
  CHECK(fp32_layers(graph, "last 15% of blocks") == "h.3.fc1 h.3.fc2");
  CHECK(fp32_layers(graph, "head") == "head");
  CHECK(fp32_layers(graph, "first layer") == "embed");
  // A layer, too, if the rule names one.
  CHECK(fp32_layers(graph, "last block", "layer = '*.fc2'\n") == "h.3.fc2");
}

TEST_CASE("places: gradients and stored weights belong to the place") {
  const Lowered net =
      lower_text(stack(),
                 "[[rule]]\nplace = 'head'\naccumulator = 'fp32_pairwise'\n"
                 "[[rule]]\nplace = 'last block'\nrole = 'weight'\npoint = 'storage'\n"
                 "format = 'bf16'\n");
  for (const char* op : {"linear", "linear_backward_input", "linear_backward_weight"}) {
    CHECK(net.op("head", op).gemm_accumulator->name == "fp32_pairwise");
    CHECK(net.op("h.3.fc2", op).gemm_accumulator->name == "fp32_fused");
  }
  CHECK(net.format(net.program.external.at("p:h.3.fc2.weight")) == "bf16");
  CHECK(net.format(net.program.external.at("p:h.2.fc2.weight")) == "fp32");
}

TEST_CASE("places: blocks of several stacks, named as in a ResNet, are one order") {
  GraphBuilder b("stages");
  Value x = b.linear("stem", b.input("x", {{4, 6}}), 8);
  for (const char* layer :
       {"layer1.0.conv1", "layer1.1.conv1", "layer2.0.conv1", "layer2.0.down.0"}) {
    x = b.linear(layer, x, 8);
  }
  b.set_loss(b.op("mse_loss", {b.linear("fc", x, 3), b.input("target", {{4, 3}})}, {}, "loss"));
  const Graph graph = b.finish();
  CHECK(join(ModelPlaces(graph).blocks(), " ") == "layer1.0 layer1.1 layer2.0");
  CHECK(fp32_layers(graph, "last block") == "layer2.0.conv1 layer2.0.down.0");
}

TEST_CASE("places: a model with two heads") {
  GraphBuilder b("heads");
  const Value x = b.linear("body", b.input("x", {{4, 6}}), 8);
  const Value left = b.linear("left", x, 3), right = b.linear("right", b.relu("act", x), 3);
  b.set_loss(b.op("mse_loss", {b.op("add", {left, right}, {}, "sum"), b.input("target", {{4, 3}})},
                  {}, "loss"));
  const Graph graph = b.finish();
  CHECK(fp32_layers(graph, "head") == "left right");
  CHECK(fp32_layers(graph, "first layer") == "body");
}

TEST_CASE("places: a model without blocks refuses the rule and says what a block is") {
  const std::string problem =
      problems_of(small_net(), "[[rule]]\nplace = 'last block'\ncompute = 'bf16'\n");
  CHECK(has(problem, "place = \"last block\""));
  CHECK(has(problem, "blocks are numbered modules"));
  CHECK(problems_of(small_net(), "[[rule]]\nplace = 'head'\ncompute = 'bf16'\n").empty());
}

TEST_CASE("places as layers: a rule for each, in the place of the rule") {
  const Graph graph = stack();
  const Policy policy = parse_policy(
      "[[rule]]\nlayer = 'embed'\ncompute = 'fp16'\n[[rule]]\nplace = 'last block'\nop = "
      "'linear'\ncompute = 'bf16'\n[[rule]]\nplace = 'head'\ncompute = 'bf16'\n",
      "test.toml");
  std::vector<std::string> layers;
  for (const PolicyRule& rule : with_layers_for_places(policy, graph).rules) {
    CHECK_FALSE(rule.place);
    layers.push_back(rule.layer);
  }
  CHECK(join(layers, " ") == "embed h.3.fc1 h.3.act h.3.fc2 h.3 head");
}

TEST_CASE("places as layers: a name that is the pattern of a layer elsewhere is refused") {
  GraphBuilder b("patterns");
  const Value x = b.linear("first", b.input("x", {{4, 6}}), 8);
  b.set_loss(b.op("mse_loss", {b.linear("f*t", x, 3), b.input("target", {{4, 3}})}, {}, "loss"));
  const Graph graph = b.finish();
  const auto problem = [&](const char* place) -> std::string {
    const Policy policy =
        parse_policy(fmt::format("[[rule]]\nplace = '{}'\ncompute = 'bf16'\n", place), "t.toml");
    try {
      with_layers_for_places(policy, graph);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(has(problem("head"), "layer 'f*t' is a pattern that 'first' matches, too"));
  CHECK(problem("first layer").empty());
}

TEST_CASE("numbered modules: the shortest path that ends in a number") {
  const auto text = [](const std::string& layer) {
    const auto found = numbered_module(layer);
    return found ? fmt::format("{}|{}|{}", found->list, found->number, found->path) : "";
  };
  CHECK(text("encoder.layers.3.mlp.0") == "encoder.layers|3|encoder.layers.3");
  CHECK(text("2.fc") == "|2|2");
  CHECK(text("head.fc1").empty());
  CHECK(text("h.1234567.fc").empty());
}

}  // namespace
}  // namespace lockstep
