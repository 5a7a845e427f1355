// Recorded choices: what the op gives, and which of them a lane's own values would flip.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/graph/one_op.h"

namespace lockstep {
namespace {

using namespace testing;
using Ints = std::vector<int32_t>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Decided {
  Ints recorded, own;  // the op's output when it follows, and when the lane chooses
  DecisionStats stats;
};

// All in one row along the last dimension; `operands` end with the recorded integers.
template <typename T>
Decided decide(const std::vector<Tensor>& operands, Attributes attributes) {
  Node node;
  node.id = "n0";
  node.op = "decision";
  node.attributes = std::move(attributes);
  const Accumulator& accumulator = find_accumulator("fp64_fused");
  Decided found;
  for (const bool itself : {false, true}) {
    Tensor out(operands.back().shape(), Container::kI32);
    std::vector<const Tensor*> inputs;
    for (const Tensor& operand : operands) inputs.push_back(&operand);
    Tensor* outputs[] = {&out};
    OpCall call{node, inputs, outputs, scalar_kernels(), accumulator, accumulator};
    call.decides_itself = itself;
    call.decisions = &found.stats;
    found.stats = {};
    find_op("decision").run(call);
    const auto values = out.as<int32_t>();
    (itself ? found.own : found.recorded).assign(values.begin(), values.end());
  }
  return found;
}

Decided choose(const std::vector<double>& x, const Ints& recorded, Attributes attributes) {
  const auto n = static_cast<int64_t>(x.size()), k = static_cast<int64_t>(recorded.size());
  const Decided found = decide<double>(
      {Tensor::from<double>({n}, x), Tensor::from<int32_t>({k}, recorded)}, attributes);
  const Decided single =
      decide<float>({Tensor::from<float>({n}, std::vector<float>(x.begin(), x.end())),
                     Tensor::from<int32_t>({k}, recorded)},
                    attributes);
  CHECK(found.own == single.own);
  CHECK(found.stats.flipped == single.stats.flipped);
  CHECK(found.recorded == recorded);
  CHECK(found.stats.count == recorded.size());
  return found;
}

Attributes by(const char* what) {
  return {{"by", std::string(what)}};
}

TEST_CASE("ties with what was not chosen are counted, and follow the recording") {
  const Decided tie = choose({4, 3, 3, 2}, {0, 2}, by("largest"));
  CHECK(tie.stats.flipped == 0);
  CHECK(tie.stats.tied == 1);
  CHECK(tie.own == Ints{0, 2});
  CHECK(choose({3, 3, 3, 2}, {0, 2}, by("largest")).stats.tied == 2);
  CHECK(choose({4, 4, 3, 2}, {0, 1}, by("largest")).stats.tied == 0);  // both are chosen
  CHECK(choose({1, 1, 2}, {1}, by("smallest")).stats.tied == 1);
  CHECK(choose({2, 2, 1}, {1}, by("descending")).stats.tied == 1);        // an argmax
  CHECK(choose({2, 2, 1}, {0, 1, 2}, by("descending")).stats.tied == 0);  // a sort chooses all
  CHECK(choose({4, 1, 3, 3}, {1, 2}, by("largest")).stats.tied == 0);     // flipped
}

TEST_CASE("a set of the largest: what is below the last that belongs to it has flipped") {
  const Decided same = choose({4, 1, 3, 2}, {2, 0}, by("largest"));
  CHECK(same.stats.flipped == 0);
  CHECK(same.own == Ints{2, 0});  // in another order, but the same elements
  const Decided one = choose({4, 1, 3, 2}, {0, 3}, by("largest"));
  CHECK(one.stats.flipped == 1);
  CHECK(one.stats.margin_max == 1);
  CHECK(one.own == Ints{0, 2});
  const Decided both = choose({4, 1, 3, 2}, {1, 3}, by("largest"));
  CHECK(both.stats.flipped == 2);
  CHECK(both.stats.margin_max == 2);
  CHECK(both.stats.margin_sum == 3);
  CHECK(choose({4, 1, 3, 2}, {3}, by("smallest")).own == Ints{1});
}

TEST_CASE("equal values choose what was recorded") {
  CHECK(choose({2, 2, 2}, {1}, by("largest")).stats.flipped == 0);
  CHECK(choose({2, 2, 2}, {2, 0, 1}, by("ascending")).stats.flipped == 0);
  CHECK(choose({2, 3, 2}, {2}, by("largest")).own == Ints{1});
}

TEST_CASE("orders and ranks") {
  const Decided order = choose({1, 3, 2}, {0, 1, 2}, by("descending"));
  CHECK(order.own == Ints{1, 2, 0});
  CHECK(order.stats.flipped == 3);
  CHECK(order.stats.margin_sum == 2 + 1 + 1);
  CHECK(choose({1, 3, 2}, {0, 2, 1}, by("ascending")).stats.flipped == 0);
  Attributes median = by("rank");
  median["rank"] = int64_t{1};
  CHECK(choose({1, 3, 2}, {2}, median).stats.flipped == 0);
  CHECK(choose({1, 3, 2}, {0}, median).own == Ints{2});
}

TEST_CASE("NaN is the largest, as in PyTorch, and has no margin") {
  const Decided found = choose({1, kNaN, 3}, {2}, by("largest"));
  CHECK(found.own == Ints{1});
  CHECK(found.stats.flipped == 1);
  CHECK(found.stats.margin_max == 0);
  CHECK(choose({1, kNaN, 3}, {0, 2, 1}, by("ascending")).stats.flipped == 0);
}

TEST_CASE("along any dimension") {
  Attributes first = by("largest");
  first["dim"] = int64_t{0};
  const Decided found = decide<double>(
      {Tensor::from<double>({2, 3}, {1, 5, 2, 4, 3, 2}), Tensor::from<int32_t>({1, 3}, {1, 1, 1})},
      first);
  CHECK(found.own == Ints{1, 0, 1});
  CHECK(found.stats.count == 3);
  CHECK(found.stats.flipped == 1);
}

TEST_CASE("comparisons") {
  Attributes positive = by("greater");
  positive["scalar"] = 0.5;
  const Decided found = decide<double>(
      {Tensor::from<double>({4}, {1, 0.25, 0.5, kNaN}), Tensor::from<int32_t>({4}, {1, 1, 0, 0})},
      positive);
  CHECK(found.own == Ints{1, 0, 0, 0});
  CHECK(found.recorded == Ints{1, 1, 0, 0});
  CHECK(found.stats.flipped == 1);
  CHECK(found.stats.margin_max == 0.25);
  const Decided two =
      decide<double>({Tensor::from<double>({2, 1}, {1, 2}), Tensor::from<double>({2}, {1, 2}),
                      Tensor::from<int32_t>({2, 2}, {0, 1, 0, 0})},
                     by("less"));
  CHECK(two.own == Ints{0, 1, 0, 0});
  CHECK(two.stats.flipped == 0);
}

TEST_CASE("what cannot be is refused") {
  CHECK(refusal("decision", {floats({2, 3}), ints({3, 1})}, by("largest")).find("extents of x") !=
        std::string::npos);
  CHECK(refusal("decision", {floats({2, 3}), ints({2, 4})}, by("largest")).find("extents of x") !=
        std::string::npos);
  CHECK(refusal("decision", {floats({2, 3}), ints({2, 3})}, by("greater")) != "");
  CHECK(refusal("decision", {floats({2, 3}), ints({2, 1})}, by("best")).find("largest") !=
        std::string::npos);
  Attributes rank = by("rank");
  rank["rank"] = int64_t{3};
  CHECK(refusal("decision", {floats({2, 3}), ints({2, 1})}, rank).find("[0, 3)") !=
        std::string::npos);
}

}  // namespace
}  // namespace lockstep
