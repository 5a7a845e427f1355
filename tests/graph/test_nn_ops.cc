// Losses, broadcast products, attention, recurrent layers, prelu: values by hand, gradients against
// central differences in FP64, refusals.
#include <doctest/doctest.h>

#include "src/core/error.h"
#include "src/graph/infer.h"
#include "src/graph/site.h"
#include "tests/graph/nn_graphs.h"
#include "tests/graph/one_op.h"
#include "tests/graph/run_graph.h"

namespace lockstep {
namespace {

using testing::gradient_error;
using testing::has;
using testing::kGradientTolerance;
using testing::numbers;
using testing::op_graph;
using testing::Operand;
using testing::recurrent_operands;
using testing::refusal;
using testing::run_op;
using D = std::vector<double>;

Tensor doubles(Shape shape, const D& values) {
  return Tensor::from<double>(std::move(shape), values);
}
Tensor integers(Shape shape, const std::vector<int32_t>& values) {
  return Tensor::from<int32_t>(std::move(shape), values);
}

TEST_CASE("cross_entropy: weights, ignored rows and smoothing by hand") {
  // Equal logits: every row's log-sum-exp minus its logit is log 2.
  const Tensor x = doubles({3, 2}, D(6, 1.0));
  const Tensor target = integers({3}, {0, -100, 1}), weight = doubles({2}, {1, 3});
  const double log2 = 0x1.62e42fefa39efp-1;
  const auto loss = [&](const std::vector<Tensor>& operands, const Attributes& attributes) {
    return numbers(run_op("cross_entropy", operands, attributes)[0]);
  };
  const auto near = [](double x, double y) { return std::fabs(x - y) <= 4 * 0x1p-53 * y; };
  CHECK(near(loss({x, target}, {})[0], log2));
  CHECK(near(loss({x, target}, {{"reduction", std::string("sum")}})[0], 2 * log2));
  CHECK(near(loss({x, target, weight}, {{"reduction", std::string("sum")}})[0], 4 * log2));
  CHECK(near(loss({x, target, weight}, {})[0], log2));  // divided by 1 + 3
  const D none = loss({x, target, weight}, {{"reduction", std::string("none")}});
  CHECK((near(none[0], log2) && none[1] == 0 && near(none[2], 3 * log2)));
  // Smoothing 0.5: per row 0.5 w[t] log2 + 0.25 (1 + 3) log2; over the rows 4 log2, over 1
  // + 3.
  CHECK(near(loss({x, target, weight}, {{"label_smoothing", 0.5}})[0], log2));
  CHECK(std::isnan(loss({x, integers({3}, {-100, -100, -100})}, {})[0]));
}

TEST_CASE("losses of one term per element, by hand") {
  const Tensor x = doubles({4}, {0, 1, -3, 2}), t = doubles({4}, {0, 0.5, 0, 2});
  const auto terms = [&](std::string_view op, Attributes attributes) {
    attributes["reduction"] = std::string("none");
    return numbers(run_op(op, {x, t}, attributes)[0]);
  };
  CHECK(terms("mse_loss", {}) == D{0, 0.25, 9, 0});
  CHECK(terms("l1_loss", {}) == D{0, 0.5, 3, 0});
  CHECK(terms("smooth_l1_loss", {{"beta", 2.0}}) == D{0, 0.0625, 2, 0});
  CHECK(terms("huber_loss", {{"delta", 2.0}}) == D{0, 0.125, 4, 0});
  CHECK(terms("kl_div", {{"log_target", true}})[0] == 0);  // exp(0) (0 - 0)
  CHECK(numbers(run_op("mse_loss", {x, t}, {})[0]) == D{9.25 / 4});
  CHECK(numbers(run_op("l1_loss", {x, t}, {{"reduction", std::string("sum")}})[0]) == D{3.5});
  const Tensor log = doubles({2, 2}, {-1, -2, -3, -4}), probability = doubles({2, 2}, {0, 1, 0, 1});
  CHECK(numbers(run_op("kl_div", {log, probability},
                       {{"reduction", std::string("batchmean")}})[0]) == D{3});
  // x = 0: every term is weight * log 2, times pos_weight where the target is 1.
  const D bce = numbers(
      run_op("bce_with_logits",
             {doubles({2}, {0, 0}), doubles({2}, {0, 1}), doubles({}, {2}), doubles({2}, {8, 4})},
             {{"reduction", std::string("none")}})[0]);
  CHECK(bce[1] == 4 * bce[0]);
  CHECK(std::fabs(bce[0] - 2 * 0x1.62e42fefa39efp-1) <= 0x1p-51);
  // For large |x| neither exp overflows nor log underflows.
  CHECK(numbers(run_op("bce_with_logits", {doubles({2}, {-900, 900}), doubles({2}, {1, 0})},
                       {{"reduction", std::string("none")}})[0]) == D{900, 900});
}

TEST_CASE("gradients: losses") {
  const std::string sum = "sum", none = "none";
  CHECK(gradient_error(op_graph("cross_entropy", {{{5, 3}}, {{5}, true}}, {})) <=
        kGradientTolerance);
  CHECK(gradient_error(op_graph("cross_entropy", {{{2, 3, 2, 2}}, {{2, 2, 2}, true}},
                                {{"reduction", none}, {"label_smoothing", 0.3}})) <=
        kGradientTolerance);
  CHECK(gradient_error(op_graph("cross_entropy", {{{6, 3}}, {{6}, true}},
                                {{"ignore_index", int64_t{1}}, {"label_smoothing", 0.3}})) <=
        kGradientTolerance);
  for (const char* op :
       {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "bce_with_logits"}) {
    CAPTURE(op);
    CHECK(gradient_error(op_graph(op, {{{3, 4}}, {{3, 4}}}, {})) <= kGradientTolerance);
    CHECK(gradient_error(op_graph(op, {{{3, 4}}, {{3, 4}}}, {{"reduction", none}})) <=
          kGradientTolerance);
  }
  CHECK(gradient_error(op_graph("kl_div", {{{3, 4}}, {{3, 4}}},
                                {{"log_target", true}, {"reduction", sum}})) <= kGradientTolerance);
}

TEST_CASE("matmul: batch dimensions broadcast, and their gradients are summed") {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      CAPTURE(ta);
      CAPTURE(tb);
      const Attributes attributes = {{"transpose_a", ta}, {"transpose_b", tb}};
      const auto turned = [](Shape shape, bool turn) {
        if (turn) std::swap(shape[shape.size() - 2], shape.back());
        return shape;
      };
      const std::pair<Shape, Shape> pairs[] = {{{2, 3, 4}, {4, 2}},
                                               {{3, 4}, {2, 4, 2}},
                                               {{2, 1, 3, 4}, {3, 4, 2}},
                                               {{1, 3, 4}, {2, 4, 2}}};
      for (const auto& [a, b] : pairs) {
        CHECK(gradient_error(op_graph("matmul", {{turned(a, ta)}, {turned(b, tb)}}, attributes)) <=
              kGradientTolerance);
      }
    }
  }
  // (2,1,1,2) x (3,2,1): every a with every b.
  CHECK(
      numbers(run_op("matmul",
                     {doubles({2, 1, 1, 2}, {1, 2, 3, 4}), doubles({3, 2, 1}, {1, 0, 0, 1, 10, 1})},
                     {})[0]) == D{1, 2, 12, 3, 4, 34});
}

TEST_CASE("matmul: one matrix for a stack sums its gradient inside one product") {
  const Graph step = differentiate(op_graph("matmul", {{{2, 3, 4}}, {{4, 2}}}, {}));
  for (const Node& node : step.nodes) CHECK(node.op != "sum_to");
  CHECK(step.type_of(step.gradients.at("w1")) == TensorType{{4, 2}});
}

TEST_CASE("sdpa: masks by hand") {
  // Scores are zero, so the remaining keys have equal weights.
  const Tensor q = doubles({1, 2, 1}, {0, 0}), k = doubles({1, 3, 1}, {1, 2, 3});
  const Tensor v = doubles({1, 3, 2}, {1, 10, 2, 20, 6, 60});
  for (const char* model : {"math", "math_reduced", "flash"}) {
    CAPTURE(model);
    const auto y = [&](std::vector<Tensor> mask, Attributes attributes) {
      attributes["model"] = std::string(model);
      std::vector<Tensor> operands = {q, k, v};
      operands.insert(operands.end(), mask.begin(), mask.end());
      return numbers(run_op("sdpa", operands, attributes)[0]);
    };
    CHECK(y({}, {}) == D{3, 30, 3, 30});
    CHECK(y({}, {{"causal", true}}) == D{1, 10, 1.5, 15});  // top-left: query 0 sees only key 0
    CHECK(y({integers({2, 3}, {0, 1, 1, 0, 0, 0})}, {}) == D{4, 40, 0, 0});
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    CHECK(y({doubles({1, 3}, {-kInfinity, -kInfinity, 5})}, {}) == D{6, 60, 6, 60});
  }
}

TEST_CASE("gradients: sdpa, all models, masked, causal, scaled") {
  const std::vector<Operand> qkv = {{{2, 3, 4}}, {{2, 5, 4}}, {{2, 5, 2}}};
  std::vector<Operand> masked = qkv;
  masked.push_back({{3, 5}, true});
  for (const char* model : {"math", "math_reduced", "flash"}) {
    CAPTURE(model);
    const Attributes with = {{"model", std::string(model)}};
    Attributes causal = with, scaled = with;
    causal["causal"] = true, scaled["scale"] = -0.7;
    CHECK(gradient_error(op_graph("sdpa", qkv, with)) <= kGradientTolerance);
    CHECK(gradient_error(op_graph("sdpa", qkv, causal)) <= kGradientTolerance);
    CHECK(gradient_error(op_graph("sdpa", qkv, scaled)) <= kGradientTolerance);
    CHECK(gradient_error(op_graph("sdpa", masked, with)) <= kGradientTolerance);
    Attributes dropping = with;
    dropping["dropout_p"] = 0.4;
    CHECK(gradient_error(op_graph("sdpa", qkv, dropping)) <= kGradientTolerance);
    Attributes grouped = with;
    grouped["gqa"] = true;
    const std::vector<Operand> shared = {{{4, 3, 4}}, {{2, 5, 4}}, {{1, 5, 2}}};
    CHECK(gradient_error(op_graph("sdpa", shared, grouped)) <= kGradientTolerance);
  }
}

TEST_CASE("gradients: lstm and gru, every output, layers, directions, dropout") {
  for (const bool lstm : {true, false}) {
    const std::string op = lstm ? "lstm" : "gru";
    CAPTURE(op);
    const size_t outputs = lstm ? 3 : 2;
    CHECK(gradient_error(op_graph(op, recurrent_operands(lstm, 1, 1, true), {}, outputs)) <=
          kGradientTolerance);
    std::vector<Operand> time_first = recurrent_operands(lstm, 1, 1, false);
    time_first[0].shape = {3, 2, 3};
    CHECK(gradient_error(op_graph(op, time_first, {{"has_bias", false}, {"batch_first", false}})) <=
          kGradientTolerance);
    CHECK(
        gradient_error(op_graph(op, recurrent_operands(lstm, 2, 2, true),
                                {{"layers", int64_t{2}}, {"bidirectional", true}, {"dropout", 0.4}},
                                outputs)) <= kGradientTolerance);
  }
}

TEST_CASE("lstm and gru: one step by hand") {
  // All weights and biases zero: gates are 1/2 and tanh 0.
  const Tensor x = doubles({1, 1, 1}, {5}), h = doubles({1, 1, 1}, {0.5}),
               c = doubles({1, 1, 1}, {3});
  const auto zeros = [](Shape shape) { return Tensor(std::move(shape), Container::kF64); };
  const auto lstm =
      run_op("lstm", {x, h, c, zeros({4, 1}), zeros({4, 1}), zeros({4}), zeros({4})}, {});
  CHECK(numbers(lstm[2]) == D{1.5});
  CHECK(numbers(lstm[1]) == numbers(lstm[0]));
  CHECK(std::fabs(numbers(lstm[0])[0] - 0.45257412682243322) <= 0x1p-53);  // tanh(1.5) / 2
  CHECK(numbers(run_op("gru", {x, h, zeros({3, 1}), zeros({3, 1}), zeros({3}), zeros({3})},
                       {})[0]) == D{0.25});
  // torch's placement of b_hn: n = tanh(r b_hn), here r = 1/2 and b_hn = 3; z is 1/2.
  const Tensor b_hh = doubles({3}, {0, 0, 3});
  CHECK(std::fabs(numbers(run_op("gru", {x, h, zeros({3, 1}), zeros({3, 1}), zeros({3}), b_hh},
                                 {})[0])[0] -
                  (0.25 + 0.45257412682243322)) <= 0x1p-53);
}

TEST_CASE("lstm and gru: x and the weight matrices are factors, biases and states are not") {
  Node node;
  node.op = "lstm";
  const auto factors = [&](size_t operands) {
    std::vector<size_t> found;
    for (size_t i = 0; i < operands; ++i) {
      if (find_op(node.op).sums.is_factor(node, i)) found.push_back(i);
    }
    return found;
  };
  CHECK(factors(12) == std::vector<size_t>{0, 3, 4});
  node.attributes = {{"bidirectional", true}, {"has_bias", false}};
  CHECK(factors(12) == std::vector<size_t>{0, 3, 4, 5, 6});
  node.op = "gru", node.attributes = {{"layers", int64_t{2}}};
  CHECK(factors(12) == std::vector<size_t>{0, 2, 3, 6, 7});
}

TEST_CASE("recurrent layers and sdpa's gradient have no accumulator site; sdpa has one") {
  const auto accumulator_sites = [](const Graph& graph) {
    std::vector<std::string> found;
    for (const Site& site : make_sites(graph, 0).sites) {
      if (site.point == Point::kAccumulator) found.push_back(site.op);
    }
    return found;
  };
  CHECK(accumulator_sites(differentiate(op_graph("lstm", recurrent_operands(true, 1, 1, true), {})))
            .empty());
  CHECK(accumulator_sites(differentiate(op_graph("sdpa", {{{3, 4}}, {{5, 4}}, {{5, 2}}}, {}))) ==
        std::vector<std::string>{"sdpa"});
}

TEST_CASE("prelu: values and gradients, one slope and one per channel") {
  const Tensor x = doubles({1, 2, 2}, {-1, 2, -3, 0}), w = doubles({2}, {0.5, 10});
  CHECK(numbers(run_op("prelu", {x, w}, {})[0]) == D{-0.5, 2, -30, 0});
  CHECK(gradient_error(op_graph("prelu", {{{2, 3, 4}}, {{3}}}, {})) <= kGradientTolerance);
  CHECK(gradient_error(op_graph("prelu", {{{4, 3}}, {{3}}}, {})) <= kGradientTolerance);
  CHECK(gradient_error(op_graph("prelu", {{{2, 3, 4}}, {{1}}}, {})) <= kGradientTolerance);
}

TEST_CASE("refusals of losses, attention, recurrent layers and prelu say why") {
  const auto f = [](Shape shape) { return TensorType{std::move(shape)}; };
  const auto i = [](Shape shape) { return TensorType{std::move(shape), ElementType::kInt}; };
  CHECK(has(refusal("cross_entropy", {f({4, 3, 2}), i({4})}), "must be [4, 2]"));
  CHECK(has(refusal("cross_entropy", {f({4, 3}), i({4}), f({4})}), "must be [3] = (C)"));
  CHECK(has(refusal("cross_entropy", {f({4, 3}), i({4})}, {{"label_smoothing", 1.5}}),
            "must be in [0, 1]"));
  CHECK(has(refusal("mse_loss", {f({4}), f({4})}, {{"reduction", std::string("batchmean")}}),
            "'reduction' is 'batchmean', must be one of 'mean', 'sum', 'none'"));
  CHECK(has(refusal("huber_loss", {f({4}), f({4})}, {{"delta", 0.0}}), "must be above 0"));
  CHECK(has(refusal("bce_with_logits", {f({4}), f({4}), f({3})}), "do not broadcast"));
  CHECK(has(refusal("sdpa", {f({2, 3, 4}), f({2, 5, 4}), f({1, 5, 4})}), "must agree"));
  CHECK(has(refusal("sdpa", {f({3, 4}), f({5, 3}), f({5, 4})}), "4 features and k 3"));
  CHECK(has(refusal("sdpa", {f({3, 4}), f({5, 4}), f({5, 4}), i({3, 5})}, {{"causal", true}}),
            "a mask and attribute 'causal'"));
  CHECK(has(refusal("sdpa", {f({3, 4}), f({5, 4}), f({5, 4})}, {{"dropout_p", 1.1}}),
            "must be in [0, 1]"));
  CHECK(has(refusal("sdpa", {f({3, 4}), f({5, 4}), f({5, 4})}, {{"model", std::string("mem")}}),
            "must be one of 'math', 'math_reduced', 'flash'"));
  CHECK(has(refusal("sdpa", {f({3, 3, 4}), f({2, 5, 4}), f({2, 5, 4})}, {{"gqa", true}}),
            "heads of q be a multiple"));
  std::vector<TensorType> lstm;
  for (const Operand& operand : recurrent_operands(true, 1, 1, true)) {
    lstm.push_back(f(operand.shape));
  }
  CHECK(refusal("lstm", lstm).empty());
  CHECK(has(refusal("lstm", lstm, {{"proj_size", int64_t{1}}}), "must have 8"));
  CHECK(has(refusal("lstm", lstm, {{"proj_size", int64_t{-1}}}), "must be 0 (none) or more"));
  CHECK(has(refusal("lstm", lstm, {{"layers", int64_t{2}}}), "has 7 operands, must have 11"));
  lstm[3].shape[1] = 4;
  CHECK(has(refusal("lstm", lstm), "operand 3 is [8, 4], must be [8, 3]"));
  CHECK(has(refusal("prelu", {f({2, 3}), f({2})}), "must be [1] or [3]"));
}

TEST_CASE("a gradient for a loss's weights or a mask is refused, not dropped") {
  CHECK_THROWS_WITH_AS(differentiate(op_graph("cross_entropy", {{{4, 3}}, {{4}, true}, {{3}}}, {})),
                       doctest::Contains("class weights have none"), InputError);
  CHECK_THROWS_WITH_AS(differentiate(op_graph("bce_with_logits", {{{4}}, {{4}}, {{4}}}, {})),
                       doctest::Contains("weights of a loss have none"), InputError);
  CHECK_THROWS_WITH_AS(
      differentiate(op_graph("sdpa", {{{3, 4}}, {{5, 4}}, {{5, 2}}, {{3, 5}}}, {})),
      doctest::Contains("the mask has none"), InputError);
}

}  // namespace
}  // namespace lockstep
