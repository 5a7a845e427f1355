// Backward passes that a user wrote: the gradient they give, their JSON, and what is refused.
#include "src/graph/recorded_backward.h"

#include <doctest/doctest.h>

#include <string>

#include "src/graph/autodiff.h"
#include "src/graph/json.h"
#include "tests/graph/run_graph.h"
#include "tests/support/refusal.h"

namespace lockstep {
namespace {

// y = 2 w, whose gradient is said to be clamp(dy, -1, 1) * w; loss = mean((y - t)^2).
std::string graph_text(const std::string& backward) {
  return R"({"ir":1,"name":"own","inputs":[{"id":"in0","path":"t","shape":[2],"dtype":"f32"}],
    "params":[{"name":"w","shape":[2],"dtype":"f32"}],"nodes":[
    {"id":"n0","op":"mul","in":["p:w"],"attrs":{"scalar":2.0},"out":[{"shape":[2],"dtype":"f32"}]},
    {"id":"n1","op":"custom_gradient","in":["n0","p:w"],"attrs":{"results":1},"out":[{"shape":[2],"dtype":"f32"}],
     "backward":)" +
         backward + R"(},
    {"id":"n2","op":"mse_loss","in":["n1","in0"],"attrs":{},"out":[{"shape":[],"dtype":"f32"}]}],"loss":"n2"})";
}

std::string inner(const std::string& op, const std::string& in, const std::string& id,
                  const std::string& attrs = "{}", const std::string& shape = "2") {
  return R"({"id":")" + id + R"(","op":")" + op + R"(","in":)" + in + R"(,"attrs":)" + attrs +
         R"(,"out":[{"shape":[)" + shape + R"(],"dtype":"f32"}]})";
}

const std::string kClamped = R"({"nodes":[)" +
                             inner("clamp", R"(["dy0"])", "n0", R"({"min":-1.0,"max":1.0})") + "," +
                             inner("mul", R"(["n0","x1"])", "n4") + R"(],"gradients":["","n4"]})";

TEST_CASE("hand-checked: the recorded pass gives the gradient, not the forward pass's ops") {
  const Graph step = differentiate(graph_from_json(graph_text(kClamped)));
  testing::Values values = testing::make_values(step, 1);
  values["p:w"] = Tensor::from<double>({2}, {3, 0.25});
  values["in0"] = Tensor::from<double>({2}, {1, 0.25});
  values = testing::run_graph(step, values);
  // dy = 2 (2w - t) / 2 = 5 and 0.25: clamp gives 1 and 0.25; times w.
  const auto gradient = values.at(step.gradients.at("w")).as<double>();
  CHECK(gradient[0] == 3);
  CHECK(gradient[1] == 0.0625);
}

TEST_CASE("JSON: read, written and read again; the step graph too") {
  const std::string text = to_json(graph_from_json(graph_text(kClamped)));
  CHECK(to_json(graph_from_json(text)) == text);
  const std::string step = to_json(differentiate(graph_from_json(text)));
  CHECK(to_json(graph_from_json(step)) == step);
}

TEST_CASE("an operand with no recorded gradient gets none") {
  const Graph step =
      differentiate(graph_from_json(graph_text(R"({"nodes":[],"gradients":["",""]})")));
  CHECK(step.gradients.empty());
}

TEST_CASE("what a recorded pass cannot be") {
  const auto refused = [](const std::string& backward) {
    return testing::error_of([&] { graph_from_json(graph_text(backward)); });
  };
  const auto one = [](const std::string& node, const std::string& gradients = R"(["","n0"])") {
    return R"({"nodes":[)" + node + R"(],"gradients":)" + gradients + "}";
  };
  CHECK(testing::has(refused("null"), "its backward pass is missing"));
  CHECK(testing::has(refused(one("")), "is not defined before its use"));
  CHECK(testing::has(refused(one("", R"(["dy0",""])")), "operand 0 can have no gradient"));
  CHECK(testing::has(refused(one("", R"(["dy0"])")), "names 1 gradients"));
  CHECK(testing::has(refused(one(inner("relu_backward", R"(["dy0","x1"])", "n0"))),
                     "the op cannot stand there"));
  CHECK(testing::has(refused(one(inner("dropout", R"(["dy0"])", "n0"))),
                     "the op cannot stand there"));
  CHECK(testing::has(refused(one(inner("neg", R"(["p:w"])", "n0"))),
                     "value 'p:w' is not defined before its use"));
  CHECK(testing::has(refused(one(inner("sum", R"(["dy0"])", "n0", "{}", ""))),
                     "the gradient of operand 1 is f32[], must be f32[2]"));
  CHECK(testing::has(
      refused(one(inner("neg", R"(["dy0"])", "n0") + "," + inner("neg", R"(["dy0"])", "n0"))),
      "defined twice"));
}

}  // namespace
}  // namespace lockstep
