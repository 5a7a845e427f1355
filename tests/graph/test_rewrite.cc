// Rewrites of a graph: the same numbers in FP64, other operations; and texts that are refused.
#include "src/graph/rewrite/rewrite.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "src/graph/builder.h"
#include "tests/graph/run_graph.h"
#include "tests/support/refusal.h"

namespace lockstep {
namespace {

using testing::error_of;
using testing::has;

// n0 q k, n1 cast, n2 times 1/8, n3 softmax, n4 log, n5 sigmoid of n2, n6 log, n7 + 1e-8, n8 mean.
Graph scores() {
  GraphBuilder b("scores");
  const Value q = b.input("q", {{4, 3}}), k = b.input("k", {{3, 4}});
  const Value product = b.op("matmul", {q, k}, {}, "attn");
  const Value wide = b.op("cast", {product}, {{"dtype", std::string("fp32")}}, "attn");
  const Value scaled = b.op("div", {wide}, {{"scalar", 8.0}}, "attn");
  const Value p = b.op("softmax", {scaled}, {{"dim", int64_t{-1}}}, "head");
  const Value a = b.op("log", {p}, {}, "head");
  const Value s = b.op("sigmoid", {scaled}, {}, "gate");
  const Value c = b.op("log", {s}, {}, "gate");
  const Value d = b.op("add", {c}, {{"scalar", 1e-8}}, "gate");
  const Value sum = b.op("add", {a, d}, {}, "loss");
  b.name_output("logits", sum);
  b.set_loss(b.op("sum", {sum}, {}, "loss"));
  return b.finish();
}

double loss_of(const Graph& graph) {
  const auto values = testing::run_graph(graph, {{"in0", testing::distinct_values({4, 3}, 1)},
                                                 {"in1", testing::distinct_values({3, 4}, 2)}});
  return values.at(graph.loss).as<double>()[0];
}

Graph rewritten(const std::string& text) {
  Graph graph = scores();
  apply_rewrites(graph, std::array{text});
  return graph;
}

TEST_CASE("every rewrite keeps the numbers and the ids of other nodes") {
  const double before = loss_of(scores());
  constexpr double kRoundings = 64;  // elements and ops of the graph, each of one rounding
  for (const std::string text : {"with_logits:n4", "with_logits:n6", "scale_first:n2"}) {
    CAPTURE(text);
    const Graph graph = rewritten(text);
    CHECK(std::fabs(loss_of(graph) - before) <= kRoundings * std::fabs(before) * 0x1p-53);
    CHECK(graph.loss == scores().loss);
    CHECK(graph.outputs == scores().outputs);
  }
  CHECK(rewritten("with_logits:n4").node("n4").op == "log_softmax");
  const Graph first = rewritten("scale_first:n2");
  CHECK(first.producer_of(first.node("n0").inputs[0])->op == "mul");
  CHECK(first.node("n2").attributes.at("scalar") == Attribute(1.0));
}

TEST_CASE("an eps is another number in its place") {
  const Graph graph = rewritten("eps:n7=0.125");
  CHECK(graph.node("n7").attributes.at("scalar") == Attribute(0.125));
  CHECK(loss_of(graph) == doctest::Approx(loss_of(scores()) + 16 * 0.125));
}

TEST_CASE("what does not apply is refused with the reason") {
  CHECK(has(error_of([] { rewritten("epps:n7=1"); }), "did you mean 'eps'?"));
  CHECK(has(error_of([] { rewritten("eps:n70=1"); }), "has no node 'n70'"));
  CHECK(has(error_of([] { rewritten("eps:n7"); }), "needs a number"));
  CHECK(has(error_of([] { rewritten("eps:n7=-1"); }), "0 < NUMBER < infinity"));
  CHECK(has(error_of([] { rewritten("with_logits:n4=1"); }), "takes no number"));
  CHECK(has(error_of([] { rewritten("with_logits:n2"); }), "does not apply to n2 (div)"));
  CHECK(has(error_of([] { rewritten("scale_first:n4"); }), "does not apply to n4 (log)"));
}

TEST_CASE("rewrites near a node are those of what it is computed from") {
  const Graph graph = scores();
  std::vector<std::string> texts;
  for (const NearRewrite& near : rewrites_near(graph, "n8", 1)) {
    texts.push_back(near.text(near.row->takes_number ? std::optional(0.5) : std::nullopt));
  }
  CHECK(texts == std::vector<std::string>{"with_logits:n4", "eps:n7=0.5"});
  CHECK(rewrites_near(graph, "n99", 3).empty());
}

}  // namespace
}  // namespace lockstep
