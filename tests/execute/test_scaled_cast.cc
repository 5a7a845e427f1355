// Scaled casts: hand-checked products, their measurements, and the state of delayed scaling.
#include <doctest/doctest.h>

#include <cmath>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/kernel_set.h"
#include "src/execute/executor.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/lower/lower.h"
#include "src/policy/find_policy.h"

namespace lockstep {
namespace {

// y = x w^T + b, loss = mean (y - target)^2.
Graph one_linear(int64_t rows, int64_t in) {
  GraphBuilder b("one");
  const Value x = b.input("x", {{rows, in}});
  const Value y = b.linear("fc", x, 1);
  b.name_output("y", y);  // kept for the checks
  b.set_loss(b.op("mse_loss", {y, b.input("target", {{rows, 1}})}, {}, "loss"));
  return differentiate(b.finish());
}

struct OneLinear {
  OneLinear(const Policy& policy, int64_t rows, std::vector<float> x, std::vector<float> w)
      : graph(one_linear(rows, static_cast<int64_t>(w.size()))),
        sites(make_sites(graph, 0)),
        executor(graph, sites, lower(graph, sites, policy)),
        state(executor.program()) {
    const auto in = static_cast<int64_t>(w.size());
    bind("in0", Tensor::from<float>({rows, in}, x));
    bind("in1", Tensor({rows, 1}, Container::kF32));
    bind("p:fc.weight", Tensor::from<float>({1, in}, w));
    bind("p:fc.bias", Tensor::from<float>({1}, {0}));
    bind(std::string(kLossSeedId), Tensor::from<float>({}, {1}));
    executor.scaled_casts().learn(state);
  }
  void bind(const std::string& id, const Tensor& tensor) {
    executor.values().bind(id, bound[id] = tensor);
  }
  // Records, with a plain FP32 step as the reference.
  std::vector<SiteRecord> step() {
    Executor reference(graph, sites, lower(graph, sites, find_policy("fp32")));
    for (const auto& [id, tensor] : bound) reference.values().bind(id, tensor);
    std::vector<SiteRecord> records(sites.sites.size()), reference_records(sites.sites.size());
    executor.begin_step({}, 1);
    reference.begin_step({}, 1);
    for (int node = 0; node < executor.node_count(); ++node) {
      reference.run_node(node, nullptr, reference_records);
      executor.run_node(node, &reference, records);
    }
    return records;
  }
  const SiteRecord& operand(const std::vector<SiteRecord>& records, const std::string& op,
                            int index) const {
    for (const Node& node : graph.nodes) {
      if (node.op != op) continue;
      return records.at(static_cast<size_t>(sites.find(node.id, Point::kOperand, index)));
    }
    throw std::logic_error("no op " + op);
  }
  float result(const std::string& op) const {
    for (const Node& node : graph.nodes) {
      if (node.op == op) return executor.values().of(output_id(node, 0)).as<float>()[0];
    }
    throw std::logic_error("no op " + op);
  }

  Graph graph;
  SiteTable sites;
  Executor executor;
  ScalingState state;
  std::map<std::string, Tensor> bound;
};

Policy with_scaling(const std::string& keys) {
  return parse_policy(
      "extends = \"torch-autocast-bf16:2.12\"\n[scaling]\n"
      "operand = \"fp8_e4m3+saturate\"\ngrad_operand = \"fp8_e5m2+saturate\"\n" +
          keys,
      "scaled.toml");
}

}  // namespace

// s = 448 / 3 for both. x: 1 -> 149.3 -> 144, 3 -> 448.  w: 3 -> 448, 0.5 -> 74.7 -> 72.
// sum 144 448 + 448 72 = 96768, over s^2 4.3393, in BF16 (steps of 2^-5) 4.34375. Exact: 4.5.
TEST_CASE("current scaling: a product by hand, with its scales and errors in true units") {
  OneLinear net(find_policy("fp8-current"), 1, {1, 3}, {3, 0.5});
  const auto records = net.step();
  CHECK(net.result("linear") == 4.34375f);
  const SiteRecord& x = net.operand(records, "linear", 0);
  const float s = 448.0f / 3.0f;
  CHECK(x.scale == s);
  CHECK(x.stats.abs_max == 448);
  CHECK(x.stats.inexact == 1);
  CHECK(x.stats.saturated == 0);
  // The error is that of 144 / s against 1.
  CHECK(x.error.compared == 2);
  const double e = 144 / double{s} - 1;
  CHECK(std::abs(x.error.err_sq - e * e) < 1e-12);
  // dy = 2 y = 8.6875 in BF16, s = 57344 / 8.6875: 8.6875 s = 57344, so dw = 57344 q_x / (s s_x).
  const SiteRecord& dy = net.operand(records, "linear_backward_weight", 1);
  CHECK(dy.scale == 57344.0f / 8.6875f);
  // q_x = 144: dw = 8.6875 * 144 * 3 / 448 = 8.377, in BF16 (steps of 2^-4) 8.375.
  CHECK(net.result("linear_backward_weight") == 8.375f);
}

TEST_CASE("statistics of scaled casts count the outcome of the values before rounding") {
  // s = 448: 2^-20 s is below half the smallest subnormal number 2^-9, 2^-15 s is above it.
  OneLinear net(find_policy("fp8-current"), 1, {1, 0x1p-20f, 0x1p-15f}, {1, 1, 1});
  const auto records = net.step();
  const TensorStats& stats = net.operand(records, "linear", 0).stats;
  CHECK(stats.to_zero == 1);
  CHECK(stats.to_subnormal == 1);
  CHECK(stats.exponent_histogram[127 + 8] == 1);   // 448
  CHECK(stats.exponent_histogram[127 - 12] == 1);  // 1.75 2^-12
  CHECK(stats.exponent_histogram[127 - 15 + 8] == 1);
  // Without a scale 1 is kept and both others become 0.
  OneLinear unit(with_scaling("kind = \"unit\"\n"), 1, {1, 0x1p-20f, 0x1p-15f}, {1, 1, 1});
  const SiteRecord unscaled = unit.operand(unit.step(), "linear", 0);
  CHECK(unscaled.scale == 1);
  CHECK(unscaled.stats.to_zero == 2);
  CHECK(unit.result("linear") == 1);
}

TEST_CASE("delayed scaling: the first step saturates, the next one uses its amax") {
  OneLinear net(with_scaling("kind = \"delayed\"\namax_history = 2\n"), 1, {1000, 1}, {1, 0});
  auto records = net.step();
  CHECK(net.operand(records, "linear", 0).scale == 1);
  CHECK(net.operand(records, "linear", 0).stats.saturated == 1);
  CHECK(net.result("linear") == 448);
  records = net.step();
  CHECK(net.operand(records, "linear", 0).scale == 0.448f);
  CHECK(net.operand(records, "linear", 0).stats.saturated == 0);
  CHECK(net.result("linear") == 1000);
  // 2 counts once 1000 has left the history of two.
  net.bind("in0", Tensor::from<float>({1, 2}, {2, 1}));
  net.step();
  CHECK(net.state.scale("fc.linear.0") == 0.448f);
  net.step();
  CHECK(net.state.scale("fc.linear.0") == 224);
  const auto kept = net.state.tensors().at("fc.linear.0").as<float>();
  CHECK(std::vector<float>(kept.begin(), kept.end()) == std::vector<float>{224, 2, 2, 2});

  // Evaluation reads the state and does not change it.
  const Tensor before = net.state.tensors().at("fc.linear.0");
  Executor evaluation(net.graph, net.sites,
                      lower(net.graph, net.sites,
                            with_scaling("kind = \"delayed\"\n"
                                         "amax_history = 2\n")));
  for (const auto& [id, tensor] : net.bound) evaluation.values().bind(id, tensor);
  const Tensor larger = Tensor::from<float>({1, 2}, {4, 1});
  evaluation.values().bind("in0", larger);
  evaluation.scaled_casts().read(net.state);
  evaluation.begin_step({}, 1);
  evaluation.run_node(0, nullptr, {});
  CHECK(evaluation.values().of(output_id(net.graph.nodes[0], 0)).as<float>()[0] == 2);  // 448 / 224
  CHECK(net.state.tensors().at("fc.linear.0").same_bits(before));
}

// One block of four: amax 3 = 1.5 2^1, E4M3 goes up to 1.75 2^8, so the scale is 2^-7. 3 and 1 are
// exact; 2^-9 is 2^-2 in the block and exact; 2^-20 is 2^-13 and goes to zero.
TEST_CASE("MXFP8: a block by hand") {
  OneLinear net(find_policy("mxfp8"), 1, {3, 1, 0x1p-9f, 0x1p-20f}, {1, 1, 1, 1});
  const SiteRecord x = net.operand(net.step(), "linear", 0);
  CHECK(x.scale == 1);
  CHECK(x.stats.inexact == 1);
  CHECK(x.stats.to_zero == 1);
  CHECK(net.result("linear") == 4);  // 4 + 2^-9 in BF16
}

// amax 3: s = 2688 / 3 = 896. The block's scale is 448, elements are 896 x / 448 = 2 x: 6, 2, and
// 1.4 -> 1.5. Values 2688, 896, 672 against weights of one block of 1s, s = 2688: 2688 each.
// sum (2688 + 896 + 672) 2688 / (896 2688) = 4.75.
TEST_CASE("NVFP4: two levels of scales by hand") {
  OneLinear net(find_policy("nvfp4"), 1, {3, 1, 0.7f}, {1, 1, 1});
  const SiteRecord x = net.operand(net.step(), "linear", 0);
  CHECK(x.scale == 896);
  CHECK(x.stats.abs_max == 2688);
  CHECK(x.stats.inexact == 1);
  CHECK(net.result("linear") == 4.75f);
}

TEST_CASE("micro-batches: a step's moments are in the first one's scale") {
  SiteRecord first, second;
  first.measured = second.measured = true;
  first.scale = 4, second.scale = 2;
  first.stats.sum_sq = 16, second.stats.sum_sq = 4;
  first.stats.abs_max = 4, second.stats.abs_max = 3;
  second.stats.abs_min_nonzero = 1;
  first.merge(second);
  CHECK(first.scale == 4);
  CHECK(first.stats.sum_sq == 32);
  CHECK(first.stats.abs_max == 6);
  CHECK(first.stats.abs_min_nonzero == 2);
}

}  // namespace lockstep
