// Values at rest: they leave their slots, come back bit for bit, and change nothing else.
#include "src/execute/value_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "src/core/random.h"
#include "src/execute/step_runner.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/lower/lower.h"
#include "src/policy/find_policy.h"
#include "src/policy/parse/policy_file.h"
#include "tests/execute/plan_operands.h"

namespace lockstep {
namespace {

constexpr int kLayers = 24;

// loss = sum of gelu(... gelu(dropout(x w))), element by element.
Graph deep_graph(int64_t size, double dropped) {
  GraphBuilder b("deep");
  Value y = b.op("mul", {b.input("x", {{size}}), b.parameter("w", {size})}, {}, "product");
  if (dropped > 0) y = b.dropout("dropout", y, dropped);
  for (int layer = 0; layer < kLayers; ++layer) {
    y = b.op("gelu", {y}, {}, "gelu" + std::to_string(layer));
  }
  b.set_loss(b.op("sum", {y}, {}, "loss"));
  return differentiate(b.finish());
}

// loss = sum of relu(... relu(x w) ... w). The backward pass of relu reads what the next product
// casts; without relu, nothing does.
constexpr int64_t kSide = 64;
Graph product_chain(bool relu, std::vector<std::string>& weights) {
  GraphBuilder b("chain");
  Value y = b.input("x", {{kSide, kSide}});
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string name = "fc" + std::to_string(layer);
    weights.push_back(name + ".weight");
    y = b.linear(name, y, kSide, /*bias=*/false);
    if (relu) y = b.relu("relu", y);
  }
  b.set_loss(b.op("sum", {y}, {}, "loss"));
  return differentiate(b.finish());
}

ValuePlan plan_of(const Graph& graph, const char* policy, Container container) {
  const SiteTable sites = make_sites(graph, 0);
  return plan_values(lower(graph, sites, find_policy(policy), container == Container::kF64),
                     {.container = container});
}

// The program values of masks that dropout draws.
std::vector<int> masks_of(const Graph& graph, const Program& program) {
  std::vector<int> masks;
  for (const Instruction& instruction : program.instructions) {
    const Node& node = graph.nodes[static_cast<size_t>(instruction.node)];
    if (node.op == "dropout" && instruction.kind == InstructionKind::kOp) {
      masks.push_back(instruction.outputs.at(1));
    }
  }
  return masks;
}

// The nodes at which something is in a slot, both included.
struct Stay {
  int slot, from, to;
  int64_t bytes;
};

using Copies = std::vector<std::pair<int, int>>;

// By value: the first of the values that it copies, or itself.
std::vector<size_t> originals_of(const Program& program, const Copies& copies) {
  std::vector<size_t> original(program.values.size());
  std::iota(original.begin(), original.end(), size_t{0});
  for (const auto& [from, to] : copies) {
    original[static_cast<size_t>(to)] = original[static_cast<size_t>(from)];
  }
  return original;
}

// All stays, from the instructions, the copies and the rests alone.
std::vector<Stay> stays_of(const Program& program, const Copies& copies, const ValuePlan& plan,
                           int lag) {
  constexpr int kEnd = 1 << 20;
  const std::vector<size_t> original = originals_of(program, copies);
  std::vector<int> first(program.values.size(), -1), last(program.values.size(), -1);
  for (const Instruction& instruction : program.instructions) {
    for (const int v : instruction.outputs) {
      const auto made = static_cast<size_t>(v);
      if (original[made] == made) first[made] = instruction.node;
    }
    for (const auto* list : {&instruction.inputs, &instruction.outputs}) {
      for (const int v : *list) {
        int& of_original = last[original[static_cast<size_t>(v)]];
        of_original = std::max(of_original, instruction.node);
      }
    }
  }
  for (const auto& [id, v] : program.results) last[original[static_cast<size_t>(v)]] = kEnd;
  std::map<int, const ValuePlan::Rest*> rest_of;
  for (const ValuePlan::Rest& rest : plan.rests) rest_of[rest.value] = &rest;
  std::vector<Stay> stays;
  for (size_t v = 0; v < program.values.size(); ++v) {
    if (plan.slot_of[v] < 0) {
      CHECK(first[v] < 0);
      continue;
    }
    const int64_t bytes = 4 * element_count(program.values[v].type.shape);
    const auto found = rest_of.find(static_cast<int>(v));
    if (found == rest_of.end()) {
      stays.push_back({plan.slot_of[v], first[v], last[v] + lag, bytes});
      continue;
    }
    const ValuePlan::Rest& rest = *found->second;
    stays.push_back({plan.slot_of[v], first[v], rest.begins - 1, bytes});
    // Written before node `begins`, while others may still be in their slots; read before `ends`.
    const int64_t share = rest.form == CompactForm::kBit ? 32 : 2;
    if (rest.operand < 0) {
      stays.push_back({rest.compact_slot, rest.begins - 1, rest.ends, bytes / share});
    } else {
      // It is read before `ends`, from the slot in which it was made.
      const auto operand = static_cast<size_t>(rest.operand);
      CHECK(original[operand] == operand);
      CHECK_FALSE(rest_of.contains(rest.operand));
      CHECK(first[operand] < rest.ends);
      CHECK(last[operand] >= rest.ends);
    }
    stays.push_back({rest.next_slot, rest.ends, last[v] + lag, bytes});
  }
  return stays;
}

void check_plan(const Program& program, const std::vector<int>& masks, int lag,
                const Copies& copies = {}) {
  PlanRules rules{.zeros_and_ones = masks, .copies = copies, .readers_lag = lag};
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind != InstructionKind::kCast || instruction.scaled_cast >= 0) continue;
    rules.casts.emplace_back(instruction.inputs.at(0), instruction.outputs.at(0));
  }
  const ValuePlan plan = plan_values(program, rules);
  const std::vector<size_t> original = originals_of(program, copies);
  for (size_t v = 0; v < original.size(); ++v) {
    CHECK(plan.original_of[v] == (original[v] == v ? -1 : static_cast<int>(original[v])));
  }
  for (const int mask : masks) {
    CHECK(std::ranges::count(plan.rests, mask, &ValuePlan::Rest::value) == 1);
  }
  const std::vector<Stay> stays = stays_of(program, copies, plan, lag);
  for (size_t i = 0; i < stays.size(); ++i) {
    REQUIRE(stays[i].slot >= 0);
    CHECK(plan.slots.at(static_cast<size_t>(stays[i].slot)) >= stays[i].bytes);
    for (size_t j = 0; j < i; ++j) {
      const Stay &a = stays[i], &b = stays[j];
      CHECK_FALSE((a.slot == b.slot && a.from <= b.to && b.from <= a.to));
    }
  }
  for (const ValuePlan::Rest& rest : plan.rests) {
    for (const Instruction& instruction : program.instructions) {
      const bool reads = std::ranges::any_of(instruction.inputs, [&](int v) {
        return original[static_cast<size_t>(v)] == static_cast<size_t>(rest.value);
      });
      CHECK_FALSE(
          (reads && instruction.node > rest.begins - 1 - lag && instruction.node < rest.ends));
    }
    CHECK(rest.ends - rest.begins >= kLeastRestNodes);
  }
}

// Values of several sizes and formats, each read at up to three later nodes. Some nodes copy what
// they read.
Program random_program(uint32_t number, Copies& copies) {
  const RandomStream random(1, RandomPurpose::kTest, number);
  uint64_t drawn = 0;
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(random.uniform(drawn++) * static_cast<double>(limit));
  };
  constexpr int kNodes = 80;
  Program program;
  std::vector<std::vector<int>> read_at(kNodes);
  for (int node = 0; node < kNodes; ++node) {
    Instruction instruction{};
    instruction.kind = InstructionKind::kOp;
    instruction.node = node;
    instruction.inputs = read_at[static_cast<size_t>(node)];
    for (int64_t made = 1 + below(2); made > 0; --made) {
      const int value = static_cast<int>(program.values.size());
      instruction.outputs.push_back(value);
      const Format& format = find_format(below(3) > 0 ? "fp16" : "fp32");
      program.values.push_back(
          {"n" + std::to_string(value), {{kLeastRestElements << below(3) >> below(2)}}, &format});
      if (made == 1 && instruction.outputs.size() == 1 && !instruction.inputs.empty() &&
          below(3) == 0) {
        const int from = instruction.inputs.front();
        program.values.back().type = program.values[static_cast<size_t>(from)].type;
        program.values.back().format = program.values[static_cast<size_t>(from)].format;
        copies.emplace_back(from, value);
      } else if (made == 1 && instruction.outputs.size() == 1 && !instruction.inputs.empty() &&
                 below(3) == 0) {
        instruction.kind = InstructionKind::kCast;
        program.values.back().type =
            program.values[static_cast<size_t>(instruction.inputs.front())].type;
      }
      for (int64_t uses = below(4); uses > 0; --uses) {
        const int64_t later = node + 1 + below(kNodes);
        if (later < kNodes) read_at[static_cast<size_t>(later)].push_back(value);
      }
    }
    program.instructions.push_back(instruction);
  }
  return program;
}

}  // namespace

TEST_CASE("nothing is in the slot of another, slots are large enough, nothing at rest is read") {
  const Graph graph = deep_graph(kLeastRestElements, 0.5);
  const SiteTable sites = make_sites(graph, 0);
  for (const int lag : {0, 1, 3}) {
    CAPTURE(lag);
    for (const char* policy : {"fp32", "pure-fp16", "torch-autocast-bf16", "tf32"}) {
      CAPTURE(policy);
      const Program program = lower(graph, sites, find_policy(policy), false);
      check_plan(program, masks_of(graph, program), lag);
    }
    for (const bool relu : {true, false}) {
      std::vector<std::string> weights;
      const Graph chain = product_chain(relu, weights);
      check_plan(lower(chain, make_sites(chain, 0), find_policy("tf32"), false), {}, lag);
    }
    for (uint32_t number = 0; number < 20; ++number) {
      CAPTURE(number);
      Copies copies;
      const Program program = random_program(number, copies);
      CHECK(copies.size() > 2);
      check_plan(program, {}, lag);
      check_plan(program, {}, lag, copies);
    }
  }
}

TEST_CASE("a cast whose operand stays is done again, with the same bits") {
  std::vector<std::string> weights;
  const Graph graph = product_chain(/*relu=*/true, weights);
  const SiteTable sites = make_sites(graph, 0);
  auto [x, w] = operands_of(kSide * kSide, 0);
  x.reshape({kSide, kSide}), w.reshape({kSide, kSide});
  for (size_t i = 0; i < w.as<float>().size(); ++i) {
    w.as<float>()[i] = static_cast<float>(i % 31) / 150 - 0.03F;
  }
  const Batch batch = {{"x", x}};
  const Policy stochastic = read_policy(
      {"extends = \"tf32:1\"\n[gemm]\noperand_rounding = \"stochastic\"\n", "stochastic.toml",
       false, [](const std::string& name) { return find_policy(name); }});
  std::vector<Tensor> first_gradients;
  for (const Policy& policy : {find_policy("tf32"), stochastic}) {
    CAPTURE(policy.name);
    StepRunner resting(graph, sites, policy);
    StepRunner staying(graph, sites, policy, {.in_place = true});
    // Most of the casts: one of two values of every layer.
    CHECK(resting.values().bytes() < staying.values().bytes() * 3 / 4);
    for (StepRunner* runner : {&resting, &staying}) {
      for (const std::string& weight : weights) runner->bind_parameter(weight, w);
      runner->begin({.key = {.seed = 3, .step = 2}, .loss_scales = {1}}, batch);
      for (int node = 0; node < runner->node_count(); ++node) runner->run_node(node, nullptr, {});
    }
    for (const std::string& weight : weights) {
      CHECK(resting.gradient(weight).same_bits(staying.gradient(weight)));
    }
    first_gradients.push_back(resting.gradient(weights.front()));
    CHECK(first_gradients.back().as<float>()[0] != 0);
  }
  CHECK_FALSE(first_gradients[0].same_bits(first_gradients[1]));
}

TEST_CASE("values of several sizes share slots") {
  GraphBuilder b("chain");
  Value y = b.input("x", {{64, 32}});
  for (int layer = 0; layer < kLayers; ++layer) {
    y = b.linear("fc" + std::to_string(layer), y, 32 + layer % 3, /*bias=*/false);
  }
  b.set_loss(b.op("sum", {y}, {}, "loss"));
  const ValuePlan plan = plan_of(b.finish(), "fp32", Container::kF32);
  // Two are alive at a time; with slots by size there would be six.
  CHECK(plan.bytes() <= 3 * 64 * 34 * 4);
}

TEST_CASE("what rests: large values of 16 bits, and masks") {
  const Graph large = deep_graph(kLeastRestElements, 0),
              small = deep_graph(kLeastRestElements - 1, 0);
  const auto rests = [](const Graph& graph, const char* policy, Container container) {
    return plan_of(graph, policy, container).rests.size();
  };
  CHECK(rests(large, "fp32", Container::kF32) == 0);
  CHECK(rests(large, "tf32", Container::kF32) == 0);
  CHECK(rests(small, "pure-fp16", Container::kF32) == 0);
  CHECK(rests(large, "pure-fp16", Container::kF64) == 0);
  // gelu's inputs, of all but the last layers
  CHECK(rests(large, "pure-fp16", Container::kF32) >= kLayers - kLeastRestNodes / 2);
  CHECK(plan_of(large, "pure-fp16", Container::kF32).bytes() <
        plan_of(large, "fp32", Container::kF32).bytes() * 3 / 4);
}

TEST_CASE("numbers of block formats do not rest: their scales may exceed BF16's exponents") {
  GraphBuilder b("blocks");
  Value y = b.input("x", {{64, 64}});
  for (int layer = 0; layer < kLayers; ++layer) {
    y = b.op("gelu", {b.linear("fc" + std::to_string(layer), y, 64)}, {}, "gelu");
  }
  b.set_loss(b.op("sum", {y}, {}, "loss"));
  const Graph graph = differentiate(b.finish());
  const SiteTable sites = make_sites(graph, 0);
  // Weights in squares are cast once, for the forward and the backward product.
  const Policy squares =
      read_policy({"extends = \"mxfp8:1\"\n[scaling]\nweight_blocks = \"square\"\n", "squares.toml",
                   false, [](const std::string& name) { return find_policy(name); }});
  const auto scaled_rests = [&](const Policy& policy) {
    const Program program = lower(graph, sites, policy, false);
    const ValuePlan plan = plan_values(program, {});
    CHECK(plan.rests.size() > 0);
    return std::ranges::count_if(plan.rests, [&](const ValuePlan::Rest& rest) {
      return program.values[static_cast<size_t>(rest.value)].scaled_cast >= 0;
    });
  };
  CHECK(scaled_rests(squares) == 0);
  CHECK(scaled_rests(find_policy("fp8-current")) > 0);  // one scale for the whole tensor
}

TEST_CASE("values come back from rest bit for bit, and cannot be read meanwhile") {
  const Graph graph = deep_graph(kLeastRestElements, 0);
  const SiteTable sites = make_sites(graph, 0);
  StepRunner runner(graph, sites, find_policy("pure-fp16"));
  Tensor x({kLeastRestElements}, Container::kF32), w({kLeastRestElements}, Container::kF32);
  const float special[] = {std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           -0.0f,
                           0x1p-24f,
                           65504,
                           std::numeric_limits<float>::quiet_NaN(),
                           -0x1p-14f};
  for (size_t i = 0; i < x.as<float>().size(); ++i) {
    x.as<float>()[i] = i < std::size(special) ? special[i] : static_cast<float>(i % 97) / 16 - 3;
    w.as<float>()[i] = 1;
  }
  runner.bind_parameter("w", w);
  const Batch batch = {{"x", x}};
  const std::string product = output_id(graph.nodes[0], 0);  // read by gelu and its gradient
  for (int turn = 0; turn < 2; ++turn) {
    runner.begin({.key = {}, .loss_scales = {1}}, batch);
    int at_rest = 0, used = 0;
    for (int node = 0; node < runner.node_count(); ++node) {
      runner.run_node(node, nullptr, {});
      const auto& inputs = graph.nodes[static_cast<size_t>(node)].inputs;
      if (node == 0 || std::ranges::count(inputs, product) > 0) {
        CHECK(runner.values().of(product).same_bits(x));
        used += node > 1;
      } else if (node > 1 && used == 0) {
        CHECK_THROWS_AS(runner.values().of(product), std::logic_error);
        ++at_rest;
      }
    }
    CHECK(at_rest > kLayers);
    CHECK(used == 1);
  }
}

TEST_CASE("a value that may be changed keeps its place") {
  const Graph graph = deep_graph(kLeastRestElements, 0);
  const SiteTable sites = make_sites(graph, 0);
  const Tensor x({kLeastRestElements}, Container::kF32);
  const Batch batch = {{"x", x}};
  const std::string product = output_id(graph.nodes[0], 0);
  const auto run_first = [&](StepRunner& runner) {
    runner.bind_parameter("w", x);
    runner.begin({.key = {}, .loss_scales = {1}}, batch);
    runner.run_node(0, nullptr, {});
  };
  StepRunner resting(graph, sites, find_policy("pure-fp16"));
  run_first(resting);
  CHECK_THROWS_AS(resting.values().mutable_of(product), std::logic_error);
  StepRunner runner(graph, sites, find_policy("pure-fp16"), {.in_place = true});
  run_first(runner);
  constexpr float kNotFp16 = 0x1p-149f;
  runner.values().mutable_of(product).as<float>()[0] = kNotFp16;
  for (int node = 1; node < runner.node_count(); ++node) {
    runner.run_node(node, nullptr, {});
    const auto& inputs = graph.nodes[static_cast<size_t>(node)].inputs;
    if (std::ranges::count(inputs, product) == 0) continue;
    CHECK(runner.values().of(product).as<float>()[0] == kNotFp16);
  }
}

TEST_CASE("a forward pass alone keeps nothing for the backward pass") {
  const Graph graph = deep_graph(kLeastRestElements, 0.5);
  const SiteTable sites = make_sites(graph, 0);
  const auto [x, w] = operands_of(kLeastRestElements, 1);
  const Batch batch = {{"x", x}};
  std::vector<double> losses;
  std::vector<int64_t> bytes;
  for (const bool forward_alone : {false, true}) {
    StepRunner runner(graph, sites, find_policy("pure-fp16"), {.forward_only = forward_alone});
    runner.bind_parameter("w", w);
    runner.begin({.key = {}, .loss_scales = {1}}, batch);
    runner.run_forward();
    losses.push_back(runner.loss());
    bytes.push_back(runner.values().bytes());
  }
  CHECK(losses[0] == losses[1]);
  CHECK(losses[0] != 0);
  CHECK(bytes[1] < bytes[0] / 3);
}

TEST_CASE("an element's gradient is the same whether its array and its mask rest or not") {
  constexpr int64_t kSmall = 64;
  for (const char* policy : {"pure-fp16", "pure-bf16", "torch-autocast-fp16", "fp32"}) {
    CAPTURE(policy);
    std::vector<std::vector<float>> gradients;
    for (const int64_t size : {kSmall, kLeastRestElements}) {
      const Graph graph = deep_graph(size, 0.5);
      const SiteTable sites = make_sites(graph, 0);
      StepRunner reference(graph, sites, find_policy("fp32"), {.readers_lag = 1});
      StepRunner runner(graph, sites, find_policy(policy));
      Tensor x({size}, Container::kF32), w({size}, Container::kF32), mask({size}, Container::kI32);
      for (size_t i = 0; i < x.as<float>().size(); ++i) {
        x.as<float>()[i] = static_cast<float>(i % kSmall) / 16;
        w.as<float>()[i] = 1;
        mask.as<int32_t>()[i] = i % kSmall % 5 != 0;
      }
      const Batch batch = {{"x", x}, {std::string(kMaskPrefix) + graph.nodes[1].id, mask}};
      for (StepRunner* each : {&reference, &runner}) {
        each->bind_parameter("w", w);
        each->begin({.key = {}, .loss_scales = {1024}}, batch);
      }
      // The reference is a node ahead.
      for (int node = 0; node <= runner.node_count(); ++node) {
        if (node < runner.node_count()) reference.run_node(node, nullptr, {});
        if (node > 0) runner.run_node(node - 1, &reference, {});
      }
      const auto found = runner.gradient("w").as<float>();
      gradients.emplace_back(found.begin(), found.end());
    }
    int64_t different = 0, dropped = 0;
    for (size_t i = 0; i < gradients[1].size(); ++i) {
      different += std::bit_cast<uint32_t>(gradients[1][i]) !=
                   std::bit_cast<uint32_t>(gradients[0][i % kSmall]);
      dropped += gradients[1][i] == 0;
    }
    CHECK(different == 0);
    CHECK(dropped == kLeastRestElements / kSmall * 13);
  }
}

}  // namespace lockstep
