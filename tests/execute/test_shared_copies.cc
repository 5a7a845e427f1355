// Copies that share their operand's memory: where they are, and what is measured of them.
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "emulation/kernels/quantize.h"
#include "src/execute/step_runner.h"
#include "src/execute/value_plan.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/policy/find_policy.h"
#include "tests/execute/plan_operands.h"

namespace lockstep {
namespace {

constexpr int kGelus = 24;  // enough nodes for a rest

// x w, element by element.
Value product_of(GraphBuilder& b, int64_t size) {
  return b.op("mul", {b.input("x", {{size}}), b.parameter("w", {size})}, {}, "product");
}

// loss = sum of gelu(... reshape(reshape(x w))): its gradient reads the last shape, late.
Graph reshaped_graph(int64_t size) {
  GraphBuilder b("reshaped");
  Value y = product_of(b, size);
  y = b.op("reshape", {y}, {{"shape", Shape{2, size / 2}}}, "halves");
  y = b.op("reshape", {y}, {{"shape", Shape{4, size / 4}}}, "quarters");
  for (int layer = 0; layer < kGelus; ++layer) {
    y = b.op("gelu", {y}, {}, "gelu" + std::to_string(layer));
  }
  b.set_loss(b.op("sum", {y}, {}, "loss"));
  return differentiate(b.finish());
}

}  // namespace

TEST_CASE("reshapes share one memory, rest with it, and are apart where values may be changed") {
  const Graph graph = reshaped_graph(kLeastRestElements);
  const SiteTable sites = make_sites(graph, 0);
  const auto [x, w] = operands_of(kLeastRestElements, 1);
  const Batch batch = {{"x", x}};
  const std::string shapes[] = {output_id(graph.nodes[0], 0), output_id(graph.nodes[1], 0),
                                output_id(graph.nodes[2], 0)};
  for (const bool in_place : {false, true}) {
    StepRunner runner(graph, sites, find_policy("pure-fp16"), {.in_place = in_place});
    const ValueStore& values = runner.values();
    runner.bind_parameter("w", w);
    runner.begin({.key = {}, .loss_scales = {1}}, batch);
    int read = 0, at_rest = 0;
    for (int node = 0; node < runner.node_count(); ++node) {
      runner.run_node(node, nullptr, {});
      if (node == 2) {
        for (const std::string& shape : {shapes[1], shapes[2]}) {
          CHECK(std::ranges::equal(values.of(shape).as<float>(), x.as<float>()));
        }
        CHECK((values.of(shapes[2]).raw() == values.of(shapes[1]).raw()) == !in_place);
        CHECK(values.of(shapes[1]).shape() == Shape{2, kLeastRestElements / 2});
        CHECK(values.of(shapes[2]).shape() == Shape{4, kLeastRestElements / 4});
      }
      if (node < 4) continue;  // read by the first gelu
      if (std::ranges::count(graph.nodes[static_cast<size_t>(node)].inputs, shapes[2]) > 0) {
        CHECK(std::ranges::equal(values.of(shapes[2]).as<float>(), x.as<float>()));
        ++read;
      } else if (!in_place && read == 0) {
        for (const std::string& shape : shapes) {
          CHECK_THROWS_AS(values.of(shape), std::logic_error);
        }
        ++at_rest;
      }
    }
    CHECK(read == 1);
    CHECK((at_rest > kGelus) == !in_place);
  }
}

TEST_CASE("a reshape has its operand's statistics without a new pass") {
  constexpr int64_t kSize = 5000;
  GraphBuilder b("known");
  const Value product = product_of(b, kSize);
  const Value first = b.op("reshape", {product}, {{"shape", Shape{50, kSize / 50}}}, "first");
  const Value second = b.op("reshape", {first}, {{"shape", Shape{kSize}}}, "second");
  b.set_loss(b.op("sum", {second}, {}, "loss"));
  const Graph graph = differentiate(b.finish());
  const SiteTable sites = make_sites(graph, 0);
  const Tensor x({kSize}, Container::kF32);
  StepRunner runner(graph, sites, find_policy("pure-fp16"));
  runner.bind_parameter("w", x);
  const Batch batch = {{"x", x}};
  const auto site = [&](size_t node) {
    return static_cast<size_t>(sites.find(graph.nodes[node].id, Point::kOutput, 0));
  };
  std::vector<SiteRecord> records(sites.sites.size());
  runner.begin({.key = {}, .loss_scales = {1}}, batch);
  runner.run_node(0, nullptr, records);
  // 0 w is exact: its record tells all. The mark shows whether it is read.
  constexpr double kMark = 42;
  records[site(0)].stats.abs_max = kMark;
  runner.run_node(1, nullptr, records);
  CHECK(records[site(1)].stats.abs_max == kMark);
  runner.run_node(2, nullptr, records);
  CHECK(records[site(2)].stats.abs_max == kMark);
  CHECK(records[site(2)].measured);
}

// Lane: FP16 throughout, so that the model's own cast to FP16 changes nothing. Reference: FP32, and
// that cast rounds.
TEST_CASE("a copy's error is its own where the reference's value is no copy") {
  constexpr int64_t kSize = 5000;
  GraphBuilder b("cast");
  const Value product = product_of(b, kSize);
  const Value narrow = b.op("cast", {product}, {{"dtype", "fp16"}}, "narrow");
  b.set_loss(b.op("sum", {narrow}, {}, "loss"));
  const Graph graph = differentiate(b.finish());
  const SiteTable sites = make_sites(graph, 0);
  const auto [x, w] = operands_of(kSize, 1.1f);
  const Batch batch = {{"x", x}};
  StepRunner reference(graph, sites, find_policy("fp32"), {.readers_lag = 1});
  StepRunner runner(graph, sites, find_policy("pure-fp16"));
  std::vector<SiteRecord> none(sites.sites.size()), records(sites.sites.size());
  for (StepRunner* of : {&reference, &runner}) {
    of->bind_parameter("w", w);
    of->begin({.key = {}, .loss_scales = {1}}, batch);
  }
  for (int node = 0; node < 2; ++node) {
    reference.run_node(node, nullptr, none);
    runner.run_node(node, &reference, records);
  }
  const std::string ids[] = {output_id(graph.nodes[0], 0), output_id(graph.nodes[1], 0)};
  CHECK(runner.values().of(ids[0]).raw() == runner.values().of(ids[1]).raw());
  CHECK(reference.values().of(ids[0]).raw() != reference.values().of(ids[1]).raw());
  double errors[2];
  for (size_t node = 0; node < 2; ++node) {
    const auto site = static_cast<size_t>(sites.find(graph.nodes[node].id, Point::kOutput, 0));
    const ErrorStats error =
        compare<float>(active_kernels(), runner.values().of(ids[node]).as<float>(),
                       reference.values().of(ids[node]).as<float>(), 1, find_format("fp16"));
    CHECK(records[site].error.err_sq == error.err_sq);
    errors[node] = error.err_sq;
  }
  CHECK(errors[0] != errors[1]);
}

TEST_CASE("a reshape is measured as it is; a cast to another format is not shared") {
  constexpr int64_t kSize = 5000;
  GraphBuilder b("copies");
  const Value product = product_of(b, kSize);
  const Value shaped = b.op("reshape", {product}, {{"shape", Shape{50, kSize / 50}}}, "shaped");
  const Value narrow = b.op("cast", {shaped}, {{"dtype", "e5m2"}}, "narrow");
  const Value same = b.op("reshape", {narrow}, {{"shape", Shape{kSize}}}, "same");
  b.set_loss(b.op("sum", {b.op("mul", {same, same}, {}, "square")}, {}, "loss"));
  const Graph graph = differentiate(b.finish());
  const SiteTable sites = make_sites(graph, 0);
  const auto [x, w] = operands_of(kSize, 1.1f);
  const Batch batch = {{"x", x}};
  const auto id = [&](const char* layer) {
    const auto found = std::ranges::find_if(
        graph.nodes, [&](const Node& node) { return node.layer == layer && !node.is_backward(); });
    REQUIRE(found != graph.nodes.end());
    return output_id(*found, 0);
  };
  const auto site = [&](const char* layer) {
    return static_cast<size_t>(sites.find(id(layer), Point::kOutput, 0));
  };
  StepRunner reference(graph, sites, find_policy("fp32"), {.readers_lag = 1});
  StepRunner runner(graph, sites, find_policy("pure-fp16"));
  for (const bool counts_only : {false, true}) {
    CAPTURE(counts_only);
    std::vector<SiteRecord> none(sites.sites.size()), records(sites.sites.size());
    const auto detail = counts_only ? SiteDetail::kCounts : SiteDetail::kEverything;
    for (StepRunner* of : {&reference, &runner}) {
      of->bind_parameter("w", w);
      of->begin({.key = {}, .loss_scales = {1}, .measuring = {detail}}, batch);
    }
    for (int node = 0; node < runner.node_count(); ++node) {
      reference.run_node(node, nullptr, none);
      runner.run_node(node, &reference, records);
      if (node != 3) continue;
      const ValueStore& store = runner.values();
      CHECK(store.of(id("shaped")).raw() == store.of(id("product")).raw());
      CHECK(store.of(id("narrow")).raw() != store.of(id("product")).raw());
      CHECK(store.of(id("same")).raw() == store.of(id("narrow")).raw());
      for (const char* layer : {"shaped", "same"}) {
        CAPTURE(layer);
        const SiteRecord& record = records[site(layer)];
        const Format& format = find_format(layer == std::string("same") ? "e5m2" : "fp16");
        const auto values = store.of(id(layer)).as<float>();
        const TensorStats stats = observe<float>(active_kernels(), values, format);
        CHECK(record.stats.count == kSize);
        CHECK(record.stats.source_zero == stats.source_zero);
        CHECK(record.stats.source_zero > 0);
        CHECK(record.stats.inexact == 0);
        CHECK(record.stats.bits_hash == (counts_only ? 0 : stats.bits_hash));
        CHECK(record.stats.sum_sq == (counts_only ? 0 : stats.sum_sq));
        if (counts_only) continue;
        const ErrorStats error = compare<float>(
            active_kernels(), values, reference.values().of(id(layer)).as<float>(), 1, format);
        CHECK(record.error.compared == kSize);
        CHECK(record.error.err_sq == error.err_sq);
        CHECK(record.error.err_max_ulps == error.err_max_ulps);
      }
      CHECK(records[site("product")].stats.inexact > 0);
    }
  }
}

}  // namespace lockstep
