// Which values of a step are watched: outputs of modules, nodes, values that the step names.
#include "src/graph/watched.h"

#include <doctest/doctest.h>

#include "src/core/error.h"
#include "src/graph/autodiff.h"
#include "tests/graph/example_graphs.h"

namespace lockstep {
namespace {

std::vector<WatchedValue> found_in(const Graph& graph, const std::vector<std::string>& patterns) {
  const Graph* const graphs[] = {&graph};
  return find_watched(graphs, patterns);
}

// Its op and layer.
std::string place_of(const Graph& graph, const std::vector<std::string>& patterns) {
  const std::vector<WatchedValue> found = found_in(graph, patterns);
  REQUIRE(found.size() == 1);
  const Node& node = graph.nodes.at(static_cast<size_t>(found[0].places.at(0).node));
  CHECK(found[0].places[0].value.starts_with(node.id));
  CHECK(!node.is_backward());
  return node.op + " " + node.layer;
}

TEST_CASE("the output of a module is the last value in it that something outside reads") {
  GraphBuilder b("nested");
  const Value x = b.input("x", {{3, 4}});
  const Value h = b.linear("body.fc", x, 4);
  const Value y = b.relu("body.act", h);
  b.op("neg", {y}, {}, "body.unused");
  const Value z = b.linear("body2", y, 4);
  b.set_loss(b.op("mse_loss", {z, b.input("target", {{3, 4}})}, {}, ""));
  const Graph step = differentiate(b.finish());
  CHECK(place_of(step, {"body"}) == "relu body.act");  // not what nothing reads
  CHECK(place_of(step, {"body.unused"}) == "neg body.unused");
  CHECK(place_of(step, {"body2"}) == "linear body2");  // not inside of body
  CHECK(place_of(step, {step.nodes.at(0).id}) == "linear body.fc");
  CHECK(found_in(step, {"body.*"}).size() == 3);
  CHECK(found_in(step, {"bod?", "body"}).size() == 1);
  CHECK(found_in(step, {}).empty());
}

TEST_CASE("values that the step names are watched, with their kind, on the paths that have them") {
  Graph named = differentiate(testing::tiny_cnn());
  const Graph plain = named;
  const std::string logits = named.outputs.at("logits");
  named.outputs = {{"watch/mine", logits}, {"log_probs/logp", logits}};
  const Graph* const graphs[] = {&plain, &named};
  const std::vector<WatchedValue> found = find_watched(graphs, {"relu1", "log_probs/fc1"});
  REQUIRE(found.size() == 4);
  CHECK(found[0].name == "logp");
  CHECK(found[0].log_probs);
  CHECK(found[0].places[0].node == -1);
  CHECK(found[0].places[1].value == logits);
  CHECK(found[1].name == "mine");
  CHECK(!found[1].log_probs);
  CHECK(found[2].name == "relu1");
  CHECK(found[2].places[0].value == found[2].places[1].value);
  CHECK(found[3].name == "fc1");
  CHECK(found[3].log_probs);
  CHECK(found[3].places[0].value == logits);
}

TEST_CASE("names that find nothing are refused together, with the nearest") {
  Graph step = differentiate(testing::tiny_cnn());
  try {
    found_in(step, {"relu2", "conv1", "x*y"});
    FAIL("not refused");
  } catch (const InputError& error) {
    REQUIRE(error.problems().size() == 2);
    CHECK(error.problems()[0].find("'relu2'") != std::string::npos);
    CHECK(error.problems()[0].find("did you mean 'relu1'?") != std::string::npos);
    CHECK(error.problems()[1].find("known: ") != std::string::npos);
  }
  step.outputs = {{"watch/labels", step.inputs.at(1).id}};
  CHECK_THROWS_WITH_AS(found_in(step, {}),
                       "watch: 'labels': a floating value of the forward pass required",
                       InputError);
  GraphBuilder b("deep");
  Value x = b.input("x", {{1, 1}});
  for (size_t i = 0; i <= kMostWatched; ++i) x = b.relu("act" + std::to_string(i), x);
  b.set_loss(b.op("mse_loss", {b.linear("fc", x, 1), b.input("target", {{1, 1}})}, {}, ""));
  CHECK_THROWS_AS(found_in(differentiate(b.finish()), {"act*"}), InputError);
}

}  // namespace
}  // namespace lockstep
