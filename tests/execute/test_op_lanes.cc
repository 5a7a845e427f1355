// Attention, recurrent layers and losses inside lanes: roundings between an op's parts, and equal
// bits on every kernel set and thread count.
#include <doctest/doctest.h>

#include <algorithm>

#include "emulation/format/rounding.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/quantize.h"
#include "src/core/parallel.h"
#include "src/execute/executor.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/lower/lower.h"
#include "src/policy/find_policy.h"
#include "src/policy/hardware_policy.h"
#include "src/policy/policy.h"
#include "tests/graph/nn_graphs.h"
#include "tests/graph/run_graph.h"

namespace lockstep {
namespace {

using testing::op_graph;
using testing::Operand;
using testing::recurrent_operands;

// A policy, or one on the hardware named after '@'.
Policy policy_of(std::string_view lane) {
  const size_t at = lane.find('@');
  Policy policy = find_policy(lane.substr(0, at));
  if (at != std::string_view::npos) apply_hardware(policy, *find_hardware(lane.substr(at + 1)));
  return policy;
}

// All values of a step graph's nodes under a policy, from distinct inputs rounded to the program's
// formats.
std::map<std::string, Tensor> run_under(const Graph& step, std::string_view lane,
                                        int32_t classes = 3) {
  const SiteTable sites = make_sites(step, 0);
  const Policy policy = policy_of(lane);
  Executor executor(step, sites, lower(step, sites, policy, false));
  std::map<std::string, Tensor> bound;
  for (auto& [id, value] : testing::make_values(step, classes)) {
    Tensor& mine = bound[id] = value;
    if (value.container() != Container::kI32) {
      mine = value.to(Container::kF32);
      quantize<float>(active_kernels(), std::as_const(mine).as<float>(), mine.as<float>(),
                      {executor.values().external_format(id)}, nullptr);
    }
    executor.values().bind(id, mine);
  }
  executor.begin_step({/*seed=*/1, /*stream=*/2, /*step=*/3}, 1);
  std::map<std::string, Tensor> values;
  for (int i = 0; i < executor.node_count(); ++i) {
    executor.run_node(i, nullptr, {});
    const Node& node = step.nodes[static_cast<size_t>(i)];
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      values[output_id(node, k)] = executor.values().of(output_id(node, k));
    }
  }
  return values;
}

TEST_CASE("lstm and gru: states are rounded at every step, as a chain of single steps would") {
  // Sequences of 3 steps under BF16 autocast: the states saved on the way are BF16 values, and
  // starting from the second one's gives the third.
  for (const bool lstm : {true, false}) {
    const std::string op = lstm ? "lstm" : "gru";
    CAPTURE(op);
    const Graph whole = differentiate(op_graph(op, recurrent_operands(lstm, 1, 1, true), {}));
    const auto values = run_under(whole, "torch-autocast-bf16");
    const Node& node = whole.nodes.front();
    const Tensor& hidden = values.at(output_id(node, node.outputs.size() - 1));  // (1,T,N,H)
    const Format& bf16 = find_format("bf16");
    std::vector<float> rounded(hidden.as<float>().begin(), hidden.as<float>().end());
    quantize<float>(active_kernels(), hidden.as<float>(), rounded, {&bf16}, nullptr);
    CHECK(std::equal(rounded.begin(), rounded.end(), hidden.as<float>().begin()));

    std::vector<Operand> operands = recurrent_operands(lstm, 1, 1, true);
    operands[0].shape[1] = 1;
    const Graph single = op_graph(op, operands, {});
    const SiteTable sites = make_sites(single, 0);
    Executor executor(single, sites,
                      lower(single, sites, find_policy("torch-autocast-bf16"), false));
    auto given = testing::make_values(whole, 3);
    std::map<std::string, Tensor> bound;
    for (const auto& [id, value] : given) {
      if (id != kLossSeedId) bound[id] = value.to(Container::kF32);
    }
    const auto x = given.at("p:w0").as<double>();  // (2,3,3): the last step of each
    bound["p:w0"] = Tensor::from<float>({2, 1, 3}, {});
    for (size_t n = 0; n < 2; ++n) {
      for (size_t c = 0; c < 3; ++c) {
        bound["p:w0"].as<float>()[n * 3 + c] = static_cast<float>(x[n * 9 + 6 + c]);
      }
    }
    for (size_t state = 1; state <= (lstm ? 2u : 1u); ++state) {
      const size_t saved = node.outputs.size() - (state == 1 ? 1 : 2);  // hidden, cells
      const auto second = values.at(output_id(node, saved)).as<float>().subspan(4, 4);
      bound["p:w" + std::to_string(state)] =
          Tensor::from<float>({1, 2, 2}, {second.begin(), second.end()});
    }
    bound["in0"] = Tensor({2, 1, 2}, Container::kF32);  // the loss's target
    for (const auto& [id, value] : bound) executor.values().bind(id, value);
    executor.begin_step({}, 1);
    executor.run_node(0, nullptr, {});
    const auto third = executor.values().of(output_id(single.nodes.front(), 1)).as<float>();
    const auto want = hidden.as<float>().subspan(8, 4);
    CHECK(std::equal(third.begin(), third.end(), want.begin()));
  }
}

// 1 / 0.9 is 1.1111 in FP32, and 1.109375 in BF16, whose numbers are 2^-7 apart there.
TEST_CASE("dropout under BF16 autocast: its scale is FP32 on CUDA, BF16 on the CPU") {
  GraphBuilder b("dropping");
  const Value x = b.input("x", {{8, 16}});
  const Value kept = b.dropout("drop", b.linear("fc", x, 64), 0.1);
  b.set_loss(b.op("mse_loss", {kept, b.input("target", {{8, 64}})}, {}, "loss"));
  const Graph step = differentiate(b.finish());
  const auto find = [&](std::string_view op) -> const Node& {
    return *std::ranges::find(step.nodes, op, &Node::op);
  };
  const Node &forward = find("dropout"), &backward = find("dropout_backward");
  const Format& bf16 = find_format("bf16");
  for (const auto& [lane, scale] : {std::pair{"torch-autocast-bf16:2.12", 1 / 0.9f},
                                    {"torch-autocast-bf16-cpu:2.13", 1.109375f}}) {
    CAPTURE(lane);
    const auto values = run_under(step, lane);
    const auto mask = values.at(output_id(forward, 1)).as<int32_t>();
    int64_t dropped = 0, differ = 0;
    for (const Node* node : {&forward, &backward}) {
      const auto in = values.at(node->inputs[0]).as<float>();
      const auto out = values.at(output_id(*node, 0)).as<float>();
      REQUIRE(in.size() == 512);
      for (size_t i = 0; i < in.size(); ++i) {
        const auto read = static_cast<float>(round_to_format(in[i], bf16, Rounding::kNearestEven));
        const float product = read * scale * static_cast<float>(mask[i]);
        differ += out[i] != round_to_format(product, bf16, Rounding::kNearestEven);
        dropped += mask[i] == 0;
      }
    }
    CHECK(differ == 0);
    CHECK(dropped > 0);
  }
}

struct Conformance {
  std::string_view op;
  std::vector<Operand> operands;
  Attributes attributes;
  size_t outputs = 1;
};

TEST_CASE(
    "kernel sets and threads: equal bits of every output and gradient, rounded lanes included") {
  const std::string none = "none";
  const std::vector<Operand> qkv = {{{6, 33, 16}}, {{6, 40, 16}}, {{6, 40, 24}}};
  const Conformance cases[] = {
      {"cross_entropy", {{{300, 21}}, {{300}, true}}, {{"ignore_index", int64_t{2}}}},
      {"cross_entropy",
       {{{3, 5, 70, 7}}, {{3, 70, 7}, true}},
       {{"label_smoothing", 0.1}, {"reduction", none}}},
      {"bce_with_logits", {{{200, 101}}, {{200, 101}}}, {}},
      {"huber_loss", {{{200, 101}}, {{200, 101}}}, {{"delta", 0.5}}},
      {"matmul", {{{3, 1, 20, 33}}, {{9, 33, 17}}}, {}},
      {"sdpa", qkv, {{"causal", true}, {"dropout_p", 0.1}}},
      {"sdpa", qkv, {{"model", std::string("flash")}}},
      {"lstm",
       recurrent_operands(true, 2, 2, true),
       {{"layers", int64_t{2}}, {"bidirectional", true}, {"dropout", 0.5}},
       3},
      {"gru", recurrent_operands(false, 1, 2, true), {{"bidirectional", true}}, 2},
      {"prelu", {{{40, 3, 200}}, {{3}}}, {}},
  };
  const std::string before(active_kernels().name);
  const int threads_before = thread_count();
  for (const Conformance& c : cases) {
    const Graph step = differentiate(op_graph(c.op, c.operands, c.attributes, c.outputs));
    for (const char* policy : {"fp32", "torch-autocast-fp16", "pure-fp16", "tf32@hopper",
                               "torch-autocast-fp16@hopper"}) {
      select_kernels("scalar");
      set_thread_count(1);
      const auto want = run_under(step, policy);
      for (const KernelSet* set : available_kernel_sets()) {
        for (const int threads : {1, 2}) {
          select_kernels(set->name);
          set_thread_count(threads);
          CAPTURE(c.op);
          CAPTURE(policy);
          CAPTURE(set->name);
          for (const auto& [id, value] : run_under(step, policy)) {
            CAPTURE(id);
            CHECK(value.same_bits(want.at(id)));
          }
        }
      }
    }
  }
  select_kernels(before);
  set_thread_count(threads_before);
}

}  // namespace
}  // namespace lockstep
