// Round trips are exact; errors name their place; the layout of captures is read.
#include "src/graph/json.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "src/core/error.h"
#include "src/graph/autodiff.h"
#include "src/graph/json_text.h"
#include "src/lower/lower.h"
#include "src/policy/find_policy.h"
#include "tests/graph/example_graphs.h"
#include "tests/support/refusal.h"

namespace lockstep {
namespace {

void check_equal(const Graph& a, const Graph& b) {
  CHECK(a.name == b.name);
  CHECK(a.loss == b.loss);
  CHECK(a.outputs == b.outputs);
  CHECK(a.gradients == b.gradients);
  REQUIRE(a.inputs.size() == b.inputs.size());
  for (size_t i = 0; i < a.inputs.size(); ++i) {
    CHECK(a.inputs[i].id == b.inputs[i].id);
    CHECK(a.inputs[i].path == b.inputs[i].path);
    CHECK(a.inputs[i].type == b.inputs[i].type);
    CHECK(a.inputs[i].requires_grad == b.inputs[i].requires_grad);
  }
  REQUIRE(a.parameters.size() == b.parameters.size());
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    CHECK(a.parameters[i].name == b.parameters[i].name);
    CHECK(a.parameters[i].type == b.parameters[i].type);
    CHECK(a.parameters[i].layer == b.parameters[i].layer);
    CHECK(a.parameters[i].requires_grad == b.parameters[i].requires_grad);
  }
  REQUIRE(a.buffers.size() == b.buffers.size());
  for (size_t i = 0; i < a.buffers.size(); ++i) {
    CHECK(a.buffers[i].name == b.buffers[i].name);
    CHECK(a.buffers[i].type == b.buffers[i].type);
    CHECK(a.buffers[i].layer == b.buffers[i].layer);
  }
  REQUIRE(a.mutations.size() == b.mutations.size());
  for (size_t i = 0; i < a.mutations.size(); ++i) {
    CHECK(a.mutations[i].buffer == b.mutations[i].buffer);
    CHECK(a.mutations[i].value == b.mutations[i].value);
  }
  REQUIRE(a.nodes.size() == b.nodes.size());
  for (size_t i = 0; i < a.nodes.size(); ++i) {
    const Node &m = a.nodes[i], &n = b.nodes[i];
    CHECK(m.id == n.id);
    CHECK(m.op == n.op);
    CHECK(m.inputs == n.inputs);
    CHECK((m.attributes == n.attributes));
    CHECK(m.outputs == n.outputs);
    CHECK(m.layer == n.layer);
    CHECK(m.source_line == n.source_line);
    CHECK(m.torch_op == n.torch_op);
    CHECK(m.forward_node == n.forward_node);
    CHECK(m.gradient_of == n.gradient_of);
    CHECK(m.pass == n.pass);
  }
  REQUIRE(a.passes.size() == b.passes.size());
  for (size_t i = 0; i < a.passes.size(); ++i) {
    CHECK(a.passes[i].name == b.passes[i].name);
    CHECK(a.passes[i].loss == b.passes[i].loss);
    CHECK(a.passes[i].seed == b.passes[i].seed);
    CHECK(a.passes[i].gradients == b.passes[i].gradients);
  }
}

TEST_CASE("round trip: forward and step graphs come back equal, text included") {
  Graph forward = testing::tiny_cnn();
  forward.parameters[1].requires_grad = false;
  forward.inputs[0].requires_grad = true;
  forward.nodes[0].source_line = "model.py:33";
  forward.nodes[0].torch_op = "aten.convolution.default";
  forward.nodes[0].layer = "a \"quoted\"\\path/\u00e9";
  for (const Graph& graph : {forward, differentiate(forward), testing::two_consumers(),
                             differentiate_per_loss(testing::two_losses())}) {
    const std::string text = to_json(graph);
    const Graph back = graph_from_json(text);
    check_equal(graph, back);
    CHECK(to_json(back) == text);
  }
}

TEST_CASE("round trip: every double keeps its bits and stays a double") {
  Graph graph = testing::tiny_cnn();
  for (const double eps : {1e-5, 0.1, 1.0, 4.0, 1.0 / 3, 0x1p-1074, 1.7976931348623157e308, 1e22}) {
    graph.nodes[1].attributes["eps"] = eps;
    const Graph back = graph_from_json(to_json(graph));
    const Attribute& attribute = back.nodes[1].attributes.at("eps");
    REQUIRE(std::holds_alternative<double>(attribute));
    CHECK(std::get<double>(attribute) == eps);
  }
  // Special values are strings; the op then refuses or accepts them as numbers.
  graph.nodes[1].attributes["eps"] = std::numeric_limits<double>::infinity();
  CHECK(to_json(graph).find("\"eps\":\"inf\"") != std::string::npos);
  const Graph back = graph_from_json(to_json(graph));
  CHECK(std::isinf(std::get<double>(back.nodes[1].attributes.at("eps"))));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST_CASE("equal graphs as other text: layout, digits and order of keys do not matter") {
  Graph graph = testing::tiny_cnn();
  graph.nodes[1].attributes["eps"] = 1e-5;
  const std::string text = to_json(graph);
  CHECK(text.find("\"eps\":1e-05") != std::string::npos);
  CHECK(text.starts_with("{\"ir\":1,\n\"name\":"));
  CHECK(text.find("\n {\"id\":\"n0\",") != std::string::npos);  // a node has its own line
  const std::string digits = replaced(text, "\"eps\":1e-05", "\"eps\":1.0000000000000001e-05");
  CHECK(same_json(digits, text));
  CHECK(same_json(replaced(text, "\"ir\":1,\n", "\"ir\":1,"), text));
  CHECK(same_json(R"({"a":1,"b":[2.50]})", R"({"b":[2.5],"a":1})"));
  CHECK_FALSE(same_json(replaced(text, "\"eps\":1e-05", "\"eps\":1.0000000000000003e-05"), text));
  CHECK_FALSE(same_json("[1]", "[1.0]"));
  CHECK_FALSE(same_json("[0.0]", "[-0.0]"));
  CHECK_FALSE(same_json("[1,2]", "[2,1]"));
  CHECK_FALSE(same_json("[1", "[1]"));
}

TEST_CASE("a capture's layout is read: missing parts, unknown fields, slots, i64") {
  const Graph graph = graph_from_json(R"({
    "ir":1, "inputs":[{"id":"in0","path":"batch[0]","shape":[4,2,3],"dtype":"f32"},
                      {"id":"in1","path":"batch[1]","shape":[4],"dtype":"i64"}],
    "params":[{"name":"bn.weight","shape":[2],"dtype":"f32"},
              {"name":"bn.bias","shape":[2],"dtype":"f32"}],
    "buffers":[{"name":"bn.running_mean","shape":[2],"dtype":"f32"},
               {"name":"bn.running_var","shape":[2],"dtype":"f32"}],
    "nodes":[{"id":"n0","op":"batch_norm",
              "in":["in0","p:bn.weight","p:bn.bias","b:bn.running_mean","b:bn.running_var"],
              "attrs":{"training":true,"momentum":0.1,"eps":1e-05},
              "out":[{"shape":[4,2,3],"dtype":"f32"},{"shape":[2],"dtype":"f32"},
                     {"shape":[2],"dtype":"f32"},{"shape":[2],"dtype":"f32"},
                     {"shape":[2],"dtype":"f32"}],
              "module":"bn","class":"torch.nn.BatchNorm1d","call":0,"src":"model.py:33",
              "aten":"aten.batch_norm.default","autocast":null,"nograd":false}],
    "mutations":[{"buffer":"bn.running_mean","value":"n0","slot":1}], "rng":[]})");
  CHECK(graph.mutations[0].value == "n0.1");
  CHECK(graph.inputs[1].type.element == ElementType::kInt);
  CHECK(graph.parameters[0].requires_grad);
  CHECK(graph.nodes[0].source_line == "model.py:33");
  CHECK(graph.nodes[0].torch_op == "aten.batch_norm.default");
}

std::string json_refusal(const std::string& json) {
  return testing::error_of([&] { graph_from_json(json); });
}

TEST_CASE("a model's autocast and no_grad regions survive a round trip and take effect") {
  Graph graph = testing::tiny_cnn();
  graph.nodes[0].autocast = AutocastRegion::kOff;
  graph.nodes[1].autocast = AutocastRegion::kOn;
  graph.nodes[1].stat_exempt = true;
  const Graph read = graph_from_json(to_json(graph));
  CHECK(read.nodes[0].autocast == AutocastRegion::kOff);
  CHECK(read.nodes[1].autocast == AutocastRegion::kOn);
  CHECK(read.nodes[2].autocast == AutocastRegion::kUnsaid);
  CHECK(read.nodes[1].stat_exempt);
  CHECK(to_json(read) == to_json(graph));
  // Off: the convolution follows its operands instead of the policy's list.
  const auto format_of_first = [](const Graph& forward) {
    const Graph step = differentiate(forward);
    const SiteTable sites = make_sites(step, 0);
    const Program program = lower(step, sites, find_policy("torch-autocast-bf16"));
    for (const ProgramValue& value : program.values) {
      if (value.graph_value == step.nodes[0].id) return std::string(value.format->name);
    }
    return std::string();
  };
  CHECK(format_of_first(testing::tiny_cnn()) == "bf16");
  CHECK(format_of_first(graph) == "fp32");
  // No gradient flows through a node under no_grad: values that only it reads have none.
  CHECK(differentiate(graph).gradients.size() == graph.parameters.size());
  graph.nodes[0].no_grad = true;
  const Graph step = differentiate(graph_from_json(to_json(graph)));
  for (const std::string& id : graph.nodes[0].inputs) {
    if (id.starts_with("p:")) CHECK(!step.gradients.contains(id.substr(2)));
  }
  CHECK(!step.gradients.empty());
}

TEST_CASE("refused: every error names its place") {
  const std::string good = to_json(testing::tiny_cnn());
  CHECK(json_refusal(good) == "");
  const auto check = [&](const std::string& from, const std::string& to, const char* expected) {
    CAPTURE(expected);
    const std::string problems = json_refusal(replaced(good, from, to));
    CAPTURE(problems);
    CHECK(problems.find(expected) != std::string::npos);
  };
  check("\"ir\":1", "\"ir\":2", "ir is 2, must be 1; a newer Lockstep wrote it");
  check("\"ir\":1", "\"ri\":1", "graph.ir: is missing, must be an integer");
  check("\"op\":\"conv2d\"", "\"op\":7", "nodes[0].op: is 7, must be a string");
  check("[2,1,4,4]", "[2,1,4.5,4]", "inputs[0].shape[2]: is 4.5, must be an integer");
  check("\"dtype\":\"i32\"", "\"dtype\":\"f16\"", "inputs[1].dtype: is 'f16', must be f32, i32");
  check("\"attrs\":{", "\"attrs\":{\"x\":[1,\"a\"],", "nodes[0].attrs.x: is [1,\"a\"], must be");
  check("\"src\":\"\"", "\"src\":\"\",\"autocast\":true",
        "nodes[0].autocast: is true, must be an object with 'enabled'");
  check("\"src\":\"\"", "\"src\":\"\",\"nograd\":1",
        "nodes[0].nograd: is 1, must be true or false");
  check("\"requires_grad\":true", "\"requires_grad\":1", "params[0].requires_grad: is 1, must be");
  check("\"loss\":\"n6\"", "\"loss\":\"n60\"", "value 'n60' is not defined");  // by validate()
  CHECK(json_refusal("{\"ir\":1") == "graph JSON: is not valid JSON: error at byte 8 of 7");
  CHECK(json_refusal("[]") == "graph JSON: must be an object");
}

}  // namespace
}  // namespace lockstep
