// The site table: properties of every site of a step, and the roles in a small network.
#include "src/graph/site.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "src/core/error.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/graph/op.h"
#include "src/graph/site_labels.h"
#include "tests/graph/example_graphs.h"

namespace lockstep {
namespace {

constexpr int kStates = 2;

TEST_CASE("points: every point is found by its name") {
  for (const Point point :
       {Point::kOperand, Point::kOutput, Point::kAccumulator, Point::kStorage}) {
    CHECK(find_point(to_string(point)) == point);
  }
  CHECK_THROWS_WITH_AS(find_point("ouput"), doctest::Contains("did you mean 'output'?"),
                       InputError);
}

TEST_CASE("every site: id is its index, feeds point backwards, look-ups find it") {
  for (const Graph& forward : {testing::tiny_cnn(), testing::two_consumers()}) {
    const Graph step = differentiate(forward);
    const SiteTable table = make_sites(step, kStates);
    CAPTURE(step.name);
    for (size_t i = 0; i < table.sites.size(); ++i) {
      const Site& site = table.sites[i];
      CAPTURE(site.label());
      CHECK(site.id == static_cast<int32_t>(i));
      CHECK_FALSE(site.layer.empty());
      CHECK(site.shape == step.type_of(site.value).shape);
      CHECK(step.type_of(site.value).element == ElementType::kFloat);
      for (const int32_t feed : site.feeds) {
        CHECK(feed >= 0);
        CHECK(feed < site.id);
      }
      if (site.op == "optimizer") {
        CHECK_FALSE(site.scaled);
        continue;
      }
      CHECK(table.find(site.node, site.point, site.index) == site.id);
      if (is_storage(site)) {
        CHECK_FALSE(site.scaled);
        CHECK_FALSE(is_in_graph(site));
        CHECK(site.feeds.empty());
        continue;
      }
      const Node& node = step.node(site.node);
      CHECK(site.op == node.op);
      const bool gradient = site.role == Role::kGradActivation || site.role == Role::kGradWeight;
      if (gradient) CHECK(site.scaled);
      if (site.point == Point::kOperand) {
        CHECK(site.value == node.inputs[static_cast<size_t>(site.index)]);
        // Fed by the site of the output or of the stored value that it reads.
        CHECK(site.feeds.size() == (is_seed(site.value) ? 0 : 1));
        if (!site.feeds.empty()) {
          const Site& feed = table.sites[static_cast<size_t>(site.feeds[0])];
          CHECK(feed.value == site.value);
          CHECK(is_storage(feed) == (step.producer_of(site.value) == nullptr));
        }
      } else {
        CHECK(site.scaled == node.is_backward());
        CHECK(site.feeds.size() >= 1);
        // Output 0 of a sum of products is fed by its accumulator too.
        const int32_t accumulator = table.find(site.node, Point::kAccumulator, 0);
        const bool fed_by_sum =
            std::find(site.feeds.begin(), site.feeds.end(), accumulator) != site.feeds.end();
        const bool first_output = site.point == Point::kOutput && site.index == 0;
        CHECK(fed_by_sum == (accumulator >= 0 && first_output));
      }
      CHECK((site.role == Role::kAccumulator) == (site.point == Point::kAccumulator));
    }
    CHECK(table.find("n99", Point::kOutput, 0) == -1);
    CHECK(table.find_update("nope", Role::kUpdate) == -1);
  }
}

TEST_CASE("unique labels: no two are the same, those that were unique stay as they are") {
  for (const Graph& forward : {testing::tiny_cnn(), testing::two_consumers()}) {
    const SiteTable table = make_sites(differentiate(forward), kStates);
    const std::vector<std::string> labels = unique_labels(table);
    REQUIRE(labels.size() == table.sites.size());
    CHECK(std::set<std::string>(labels.begin(), labels.end()).size() == labels.size());
    std::multiset<std::string> plain;
    for (const Site& site : table.sites) plain.insert(site.label());
    size_t extended = 0;
    for (const Site& site : table.sites) {
      const std::string& label = labels[static_cast<size_t>(site.id)];
      CAPTURE(label);
      CHECK(label.starts_with(site.label()));
      CHECK((label == site.label()) == (plain.count(site.label()) == 1));
      extended += label != site.label();
      if (is_storage(site) && label != site.label()) {
        CHECK(label.ends_with("(" + stored_name(site) + ")"));
      }
    }
    CHECK(extended > 0);
  }
}

TEST_CASE("every floating operand and output of every node has exactly one site, in node order") {
  const Graph step = differentiate(testing::tiny_cnn());
  const SiteTable table = make_sites(step, kStates);
  size_t expected = 0;
  int32_t last = -1;
  for (const Node& node : step.nodes) {
    const auto count = [&](const TensorType& t) { return t.element == ElementType::kFloat; };
    for (const std::string& value : node.inputs) expected += count(step.type_of(value)) ? 1 : 0;
    for (const TensorType& type : node.outputs) expected += count(type) ? 1 : 0;
    expected += find_op(node.op).sums.of_products ? 1 : 0;
    const int32_t output = table.find(node.id, Point::kOutput, 0);
    CHECK(output > last);
    last = output;
  }
  expected += step.gradients.size() * (1 + kStates + 2) + table.storage_sites().size();
  CHECK(table.sites.size() == expected);
}

TEST_CASE("storage: one site for each value that is not computed, before all others") {
  GraphBuilder b("stored");
  const TensorType type{{2, 3}, ElementType::kFloat};
  const Value x = b.input("x", type);
  const Value t = b.input("t", type);
  const Value mask = b.constant("mask", Tensor::from<float>({2, 3}, {0, 0, -1e9F, 0, 0, 0}));
  const Value masked =
      b.op("add", {b.batch_norm("bn", x, std::nullopt), mask}, {}, "mask_add", "model.py:41");
  b.set_loss(b.op("mse_loss", {b.linear("fc", masked, 3), t}, {}, "loss"));
  const Graph step = differentiate(b.finish());
  const SiteTable table = make_sites(step, kStates);
  const std::map<std::string, int32_t> stored = table.storage_sites();
  std::set<std::string> values;
  for (const Parameter& p : step.parameters) values.insert("p:" + p.name);
  for (const Buffer& buffer : step.buffers) {
    if (buffer.type.element == ElementType::kFloat) values.insert("b:" + buffer.name);
  }
  values.insert({"c:mask", "in0", "in1"});
  CHECK(values.size() == 4 + 2 + 1 + 2);  // num_batches_tracked is an integer
  REQUIRE(stored.size() == values.size());
  for (const auto& [value, site] : stored) CHECK(values.contains(value));
  for (const Site& site : table.sites) {
    CHECK(is_storage(site) == (site.id < static_cast<int32_t>(stored.size())));
  }
  const auto at = [&](const char* value) {
    return table.sites[static_cast<size_t>(stored.at(value))];
  };
  CHECK(at("p:fc.weight").label() == "fc storage weight storage");
  CHECK(at("p:fc.weight").node == "storage:p:fc.weight");
  CHECK(stored_name(at("p:fc.weight")) == "weight fc.weight");
  CHECK(at("b:bn.running_var").layer == "bn");
  CHECK(stored_name(at("b:bn.running_var")) == "buffer bn.running_var");
  CHECK(at("c:mask").layer == "mask_add");  // that of its reader
  CHECK(at("c:mask").source_line == "model.py:41");
  CHECK(at("c:mask").stat_exempt);
  CHECK(stored_name(at("c:mask")) == "constant mask");
  CHECK(at("in0").role == Role::kInput);
  CHECK(at("in0").layer == "bn");
  CHECK(stored_name(at("in0")) == "input x");
  Site computed = at("in0");
  computed.node = "storage:derived:x[:, 1] * 2:mul";
  CHECK(stored_name(computed) == "input x[:, 1] * 2");
  computed.node = "storage:noise:aten.rand.default:rand_1";
  CHECK(stored_name(computed) == "noise rand_1");
  Site outside = at("p:fc.weight");  // of all modules
  outside.layer = "mul";
  outside.op = "mul_backward";
  CHECK(outside.label() == "mul_backward weight storage");
}

TEST_CASE("roles: the origin of a value decides") {
  const Graph step = differentiate(testing::tiny_cnn());
  const SiteTable table = make_sites(step, kStates);
  const auto role = [&](std::string_view node, Point point, int index) {
    const int32_t id = table.find(node, point, index);
    REQUIRE(id >= 0);
    return table.sites[static_cast<size_t>(id)].role;
  };
  CHECK(role("n0", Point::kOperand, 0) == Role::kInput);
  CHECK(role("n0", Point::kOperand, 1) == Role::kWeight);
  CHECK(role("n0", Point::kAccumulator, 0) == Role::kAccumulator);
  CHECK(role("n0", Point::kOutput, 0) == Role::kActivation);
  CHECK(role("n1", Point::kOperand, 3) == Role::kBuffer);
  for (const int statistic : {1, 2, 3, 4}) {
    CHECK(role("n1", Point::kOutput, statistic) == Role::kBuffer);
  }
  CHECK(table.find("n3", Point::kOutput, 1) == -1);   // argmax is an integer
  CHECK(table.find("n6", Point::kOperand, 1) == -1);  // so are the labels
  CHECK(role("n6", Point::kOutput, 0) == Role::kLoss);
  // n7 = cross_entropy_backward(logits, labels, seed), n8/n9/n10: fc1's input, weight, bias.
  CHECK(role("n7", Point::kOperand, 2) == Role::kLoss);
  CHECK(table.sites[static_cast<size_t>(table.find("n7", Point::kOperand, 2))].scaled);
  CHECK_FALSE(table.sites[static_cast<size_t>(table.find("n7", Point::kOperand, 0))].scaled);
  CHECK(role("n7", Point::kOutput, 0) == Role::kGradActivation);
  CHECK(role("n9", Point::kOutput, 0) == Role::kGradWeight);
  CHECK(role("n9", Point::kOperand, 0) == Role::kActivation);
  CHECK(table.sites[static_cast<size_t>(table.find("n9", Point::kOutput, 0))].label() ==
        "fc1 linear_backward_weight grad_weight output");
}

TEST_CASE("a joined weight gradient: parts and sum are grad_weight, the join is fed by both") {
  const Graph step = differentiate(testing::two_consumers());
  const SiteTable table = make_sites(step, /*optimizer_states=*/0);
  const Node& join = *step.producer_of(step.gradients.at("tied.weight"));
  const int32_t output = table.find(join.id, Point::kOutput, 0);
  REQUIRE(output >= 0);
  for (const int index : {0, 1}) {
    const int32_t operand = table.find(join.id, Point::kOperand, index);
    REQUIRE(operand >= 0);
    CHECK(table.sites[static_cast<size_t>(operand)].role == Role::kGradWeight);
    const auto& feeds = table.sites[static_cast<size_t>(output)].feeds;
    CHECK(std::count(feeds.begin(), feeds.end(), operand) == 1);
  }
  CHECK(table.sites[static_cast<size_t>(output)].layer == "tied");
  const int32_t update = table.find_update("tied.weight", Role::kUpdate);
  REQUIRE(update >= 0);
  CHECK(table.sites[static_cast<size_t>(update)].feeds == std::vector<int32_t>{output});
}

TEST_CASE("infinities that a mask puts into scores are intended, up to the softmax") {
  GraphBuilder b("attention");
  const Value x = b.input("x", {{2, 3}, ElementType::kFloat});
  const Value mask = b.input("mask", {{2, 3}, ElementType::kInt});
  const Value scores = b.op("mul", {x}, {{"scalar", 0.5}}, "scale");
  const auto filled = [&](const std::string& layer, double value) {
    return b.op("masked_fill", {scores, mask}, {{"value", value}}, layer);
  };
  const auto softmax = [&](const std::string& layer, const Value& of) {
    b.op("softmax", {of}, {{"dim", int64_t{-1}}}, layer);
  };
  softmax("probabilities", b.reshape("moved", filled("infinite", -HUGE_VAL), {3, 2}));
  softmax("large", filled("beyond_fp16", -1e9));
  softmax("small", filled("within_fp16", -1e4));
  const Graph graph = b.finish();
  const SiteTable table = make_sites(graph, 0);
  const auto exempt = [&](const std::string& layer, Point point) {
    for (const Site& site : table.sites) {
      if (site.layer == layer && site.point == point) return site.stat_exempt;
    }
    FAIL("no such site");
    return false;
  };
  for (const auto& layer : {"infinite", "beyond_fp16", "moved"}) {
    CHECK(exempt(layer, Point::kOutput));
  }
  CHECK_FALSE(exempt("infinite", Point::kOperand));  // the scores themselves may not overflow
  CHECK(exempt("probabilities", Point::kOperand));
  CHECK_FALSE(exempt("probabilities", Point::kOutput));
  CHECK(exempt("large", Point::kOperand));
  CHECK_FALSE(exempt("within_fp16", Point::kOutput));
  CHECK_FALSE(exempt("small", Point::kOperand));
}

TEST_CASE("optimizer sites: update, states, master weight, weight of every trained parameter") {
  const Graph step = differentiate(testing::tiny_cnn());
  const SiteTable table = make_sites(step, kStates);
  for (const Parameter& p : step.parameters) {
    CAPTURE(p.name);
    std::set<int32_t> ids;
    for (const Role role : {Role::kUpdate, Role::kMasterWeight, Role::kWeight}) {
      ids.insert(table.find_update(p.name, role));
    }
    for (int k = 0; k < kStates; ++k) {
      ids.insert(table.find_update(p.name, Role::kOptimizerState, k));
    }
    CHECK(ids.size() == 3 + kStates);
    CHECK(*ids.begin() >= 0);
    CHECK(table.find_update(p.name, Role::kOptimizerState, kStates) == -1);
    for (const int32_t id : ids) {
      CHECK(table.sites[static_cast<size_t>(id)].node == "optimizer:" + p.name);
      CHECK(table.sites[static_cast<size_t>(id)].layer == p.layer);
    }
    const int32_t update = table.find_update(p.name, Role::kUpdate);
    const int32_t gradient = table.sites[static_cast<size_t>(update)].feeds.at(0);
    CHECK(table.sites[static_cast<size_t>(gradient)].role == Role::kGradWeight);
    CHECK(table.sites[static_cast<size_t>(gradient)].value == step.gradients.at(p.name));
  }
}

TEST_CASE("a pass per loss: every pass has its own all-reduce, and all feed the update") {
  const Graph step = differentiate_per_loss(testing::two_losses());
  const SiteTable table = make_sites(
      step, [](const Parameter& p) { return std::vector<Shape>(kStates, p.type.shape); },
      /*workers=*/2);
  std::vector<int32_t> reduced;
  for (int pass = 0; pass < 2; ++pass) {
    const int32_t entering = table.find_all_reduce("trunk.weight", Point::kOperand, pass);
    reduced.push_back(table.find_all_reduce("trunk.weight", Point::kOutput, pass));
    REQUIRE(entering >= 0);
    REQUIRE(reduced.back() > entering);
    const std::string& gradient =
        step.passes[static_cast<size_t>(pass)].gradients.at("trunk.weight");
    CHECK(table.sites[static_cast<size_t>(entering)].value == gradient);
    CHECK(table.sites[static_cast<size_t>(entering)].scaled);
  }
  CHECK(table.find_all_reduce("head.far.weight", Point::kOutput, 0) >= 0);
  CHECK(table.find_all_reduce("head.far.weight", Point::kOutput, 1) == -1);
  const int32_t update = table.find_update("trunk.weight", Role::kUpdate);
  CHECK(table.sites[static_cast<size_t>(update)].feeds == reduced);
  for (const Site& site : table.sites) {
    if (is_seed(site.value)) CHECK((site.scaled && site.role == Role::kLoss));
  }
}

}  // namespace
}  // namespace lockstep
