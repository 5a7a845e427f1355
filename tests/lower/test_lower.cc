// Lowering: golden programs of a small network under every preset, invariants of all programs, and
// the cast classes by hand.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "src/core/text_file.h"
#include "src/lower/program_text.h"
#include "src/policy/find_policy.h"
#include "tests/lower/lowered.h"
#include "tests/support/folders.h"

namespace lockstep {
namespace {

void check_golden(const std::string& name, const std::string& text) {
  const std::string path = testing::kSourceFolder + std::string("/tests/golden/") + name;
  if (std::getenv("LOCKSTEP_REWRITE_GOLDEN") != nullptr) write_text_file_atomically(path, text);
  CHECK(text == read_text_file(path));
}

const std::vector<std::string> kPresets = {
    "fp32",      "tf32",        "torch-autocast-fp16", "torch-autocast-bf16",
    "pure-fp16", "fp8-delayed", "fp8-current",         "mxfp8",
    "nvfp4",     "apex-o2"};

TEST_CASE("golden: the small network under every preset and in the truth lane") {
  for (const std::string& name : kPresets) {
    CAPTURE(name);
    const Lowered net = lower_net(small_net(), find_policy(name));
    check_golden("lower_" + name + ".txt", to_text(net.program, net.graph, net.sites));
  }
  const Lowered truth = lower_net(small_net(), find_policy("fp32"), /*fp64=*/true);
  check_golden("lower_fp64.txt", to_text(truth.program, truth.graph, truth.sites));
}

// Invariants of every program, whatever the policy.
TEST_CASE("programs: every operand and output site is measured once, values come before use") {
  for (const std::string& name : kPresets) {
    CAPTURE(name);
    const Lowered net = lower_net(small_net(), find_policy(name));
    std::multiset<int32_t> measured;
    std::set<int> defined;
    for (const auto& [id, value] : net.program.external) defined.insert(value);
    int last_node = 0;
    for (const Instruction& i : net.program.instructions) {
      CHECK(i.node >= last_node);
      last_node = i.node;
      for (int v : i.inputs) CHECK(defined.contains(v));
      for (int v : i.outputs) CHECK(defined.insert(v).second);
      for (const ValueRounding& r : i.roundings) measured.insert(r.sites.begin(), r.sites.end());
      CHECK(i.roundings.size() == (i.kind == InstructionKind::kObserve ? 1 : i.outputs.size()));
      CHECK((i.gemm_accumulator != nullptr) == (i.kind == InstructionKind::kOp));
    }
    for (const Site& site : net.sites.sites) {
      CAPTURE(site.label());
      const bool of_graph = is_in_graph(site);
      const bool value = site.point != Point::kAccumulator;
      CHECK(measured.count(site.id) == (of_graph && value ? 1 : 0));
    }
  }
}

TEST_CASE("programs: casts only where a format is too narrow for the value") {
  for (const std::string& name : kPresets) {
    CAPTURE(name);
    const Lowered net = lower_net(small_net(), find_policy(name));
    for (const Instruction& i : net.program.instructions) {
      if (i.kind != InstructionKind::kCast) continue;
      const Format* from = net.program.values[i.inputs[0]].format;
      CHECK_FALSE(contains(*i.roundings[0].format, *from));
    }
  }
  CHECK(lower_net(small_net(), find_policy("fp32")).count(InstructionKind::kCast) == 0);
  CHECK(lower_net(small_net(), find_policy("pure-fp16")).count(InstructionKind::kCast) == 0);
}

TEST_CASE("JSON: an op's inputs and outputs, and the values stored between steps") {
  const Lowered net = lower_net(small_net(), find_policy("torch-autocast-fp16"));
  const auto json = nlohmann::json::parse(to_json(net.program, net.graph));
  CHECK(json.at("model") == "small");
  CHECK(json.at("values").at("p:conv1.weight") == "fp32");
  CHECK(json.at("values").at("in1") == "int");
  const auto& conv = json.at("ops").at(0);
  CHECK(conv.at("op") == "conv2d");
  CHECK(conv.at("layer") == "conv1");
  CHECK(conv.at("backward") == false);
  CHECK(conv.at("accumulator") == "fp32_fused");
  CHECK(conv.at("inputs").at(1) == nlohmann::json{{"value", "p:conv1.weight"}, {"as", "fp16"}});
  CHECK(conv.at("outputs").at(0).at("format") == "fp16");
  CHECK_FALSE(json.at("ops").at(1).contains("accumulator"));
  const auto& norm = json.at("ops").at(1).at("inputs");
  CHECK(norm.at(0) == nlohmann::json{{"value", "n0"}, {"as", "fp16"}});
  CHECK(norm.at(1) == nlohmann::json{{"value", "p:bn1.weight"}, {"as", "fp32"}});
  CHECK(json.at("ops").size() == net.count(InstructionKind::kOp));
}

TEST_CASE("truth lane: everything FP64, nothing cast, FP64 sums, whatever the policy") {
  const Lowered net = lower_net(small_net(), find_policy("pure-fp16"), /*fp64=*/true);
  CHECK(net.count(InstructionKind::kCast) == 0);
  for (const ProgramValue& v : net.program.values) {
    if (v.type.element == ElementType::kFloat) CHECK(v.format->name == "fp64");
  }
  for (const Instruction& i : net.program.instructions) {
    CHECK(i.accumulator_site == -1);
    if (i.kind != InstructionKind::kOp) continue;
    CHECK(i.gemm_accumulator->name == "fp64_fused");
    CHECK(i.reduce_accumulator->name == "fp64_fused");
  }
}

TEST_CASE("results and externals have the documented names") {
  const Lowered net = lower_net(small_net(), find_policy("fp32"));
  std::vector<std::string> results, externals;
  for (const auto& [name, value] : net.program.results) results.push_back(name);
  for (const auto& [name, value] : net.program.external) externals.push_back(name);
  CHECK(join(results, " ") ==
        "grad:bn1.bias grad:bn1.weight grad:conv1.bias grad:conv1.weight grad:fc1.bias "
        "grad:fc1.weight loss mutation:bn1.running_mean mutation:bn1.running_var output:logits");
  CHECK(join(externals, " ") ==
        "b:bn1.running_mean b:bn1.running_var in0 in1 p:bn1.bias p:bn1.weight p:conv1.bias "
        "p:conv1.weight p:fc1.bias p:fc1.weight seed");
}

TEST_CASE("fp16 autocast: the formats PyTorch gives each op, by hand") {
  const Lowered net = lower_net(small_net(), find_policy("torch-autocast-fp16"));
  CHECK(net.reads(net.op("conv1", "conv2d")) == "fp16 fp16 fp16");
  CHECK(net.writes(net.op("conv1", "conv2d")) == "fp16");
  // batch_norm is on no list: low in and out, parameters and statistics stay FP32.
  CHECK(net.reads(net.op("bn1", "batch_norm")) == "fp16 fp32 fp32 fp32 fp32");
  CHECK(net.writes(net.op("bn1", "batch_norm")) == "fp16 fp32 fp32 fp32 fp32");
  CHECK(net.writes(net.op("relu1", "relu")) == "fp16");
  CHECK(net.writes(net.op("pool1", "max_pool2d")) == "fp16 int");
  // FP16 logits widen without a cast; the loss is FP32. Its gradient is FP32 and is cast where it
  // enters the linear's backward.
  CHECK(net.reads(net.op("loss", "cross_entropy")) == "fp16 int");
  CHECK(net.writes(net.op("loss", "cross_entropy")) == "fp32");
  CHECK(net.format(net.program.external.at("seed")) == "fp32");
  CHECK(net.writes(net.op("loss", "cross_entropy_backward")) == "fp32");
  // Log-probabilities and their gradients are in the logits' format; a bias comes after a rounding,
  // and has no part in gradients.
  const auto inside = [&](const char* layer, const char* op) {
    const Format* format = format_inside(net.op(layer, op));
    return format != nullptr ? format->name : "";
  };
  CHECK(inside("loss", "cross_entropy") == "fp16");
  CHECK(inside("loss", "cross_entropy_backward") == "fp16");
  CHECK(inside("conv1", "conv2d") == "fp16");
  CHECK(inside("conv1", "conv2d_backward_weight") == "");
  CHECK(net.reads(net.op("fc1", "linear_backward_weight")) == "fp16 fp16");
  CHECK(net.format(net.program.results.at("grad:fc1.weight")) == "fp16");
  CHECK(net.format(net.program.results.at("grad:bn1.weight")) == "fp32");
  CHECK(net.writes(net.op("bn1", "batch_norm_backward")) == "fp16 fp32 fp32");
  // The backward pass reads the weight the forward pass cast, not a second cast.
  CHECK(net.op("fc1", "linear_backward_input").inputs[0] == net.op("fc1", "linear").inputs[1]);
  // images, conv1.weight, conv1.bias, fc1.weight, fc1.bias, and the gradient of the logits.
  CHECK(net.count(InstructionKind::kCast) == 6);
}

TEST_CASE("tf32: factors are rounded to nearest-away, biases and results are not") {
  const Lowered net = lower_net(small_net(), find_policy("tf32"));
  CHECK(net.reads(net.op("conv1", "conv2d")) == "tf32 tf32 fp32");
  CHECK(net.writes(net.op("conv1", "conv2d")) == "fp32");
  CHECK(net.reads(net.op("fc1", "linear_backward_weight")) == "tf32 tf32");
  CHECK(net.writes(net.op("fc1", "linear_backward_weight")) == "fp32");
  CHECK(net.reads(net.op("fc1", "linear_backward_bias")) == "fp32");
  for (const Instruction& i : net.program.instructions) {
    if (i.kind == InstructionKind::kCast) {
      CHECK(i.roundings[0].rounding == Rounding::kNearestAway);
    }
  }
}

TEST_CASE("pure-fp16: FP16 throughout, and the FP16 accumulators are measured") {
  const Lowered net = lower_net(small_net(), find_policy("pure-fp16"));
  for (const ProgramValue& v : net.program.values) {
    if (v.type.element == ElementType::kFloat) CHECK(v.format->name == "fp16");
  }
  size_t gemm_count = 0;
  for (const Instruction& i : net.program.instructions) {
    if (i.kind != InstructionKind::kOp) continue;
    const Node& node = net.graph.nodes[i.node];
    const int32_t site = net.sites.find(node.id, Point::kAccumulator, 0);
    CHECK(i.accumulator_site == site);
    gemm_count += site >= 0;
  }
  CHECK(gemm_count == 5);  // conv1 and fc1, their weight gradients, and fc1's input gradient
  for (const Instruction& i : lower_net(small_net(), find_policy("tf32")).program.instructions) {
    CHECK(i.accumulator_site == -1);
  }
}

TEST_CASE(
    "rules: of several for one value the last wins, and a cast starts from the value as made") {
  const Lowered net = lower_text(small_net(), R"(
extends = "torch-autocast-fp16"
[[rule]]
layer = "fc1"
role = "weight"
format = "bf16"
[[rule]]
op = "linear_backward_input"
role = "weight"
format = "tf32"
)");
  CHECK(net.reads(net.op("fc1", "linear")) == "fp16 bf16 bf16");
  const Instruction& backward = net.op("fc1", "linear_backward_input");
  CHECK(net.reads(backward) == "tf32 fp16");
  // Not rounded to BF16 on the way, although the forward op read BF16.
  const int weight = net.program.external.at("p:fc1.weight");
  bool cast_found = false;
  for (const Instruction& i : net.program.instructions) {
    if (i.kind != InstructionKind::kCast || i.outputs[0] != backward.inputs[0]) continue;
    cast_found = true;
    CHECK(i.inputs[0] == weight);
  }
  CHECK(cast_found);
}

TEST_CASE("classes: without lists an op's own row decides, unless `unlisted` is set") {
  const Lowered own = lower_text(small_net(), "[autocast]\nformat = 'bf16'");
  CHECK(own.writes(own.op("conv1", "conv2d")) == "bf16");
  CHECK(own.writes(own.op("relu1", "relu")) == "bf16");
  CHECK(own.writes(own.op("loss", "cross_entropy")) == "fp32");
  const Lowered follow =
      lower_text(small_net(), "[autocast]\nformat = 'bf16'\nunlisted = 'follow'");
  CHECK(follow.writes(follow.op("conv1", "conv2d")) == "fp32");
}

TEST_CASE("seed: the gradient of the loss is in the loss's format, not in the inputs'") {
  const Lowered net =
      lower_text(small_net(), "extends = 'torch-autocast-fp16'\n[storage]\ninput = 'fp16'");
  CHECK(net.format(net.program.external.at("in0")) == "fp16");
  CHECK(net.format(net.program.external.at("seed")) == "fp32");
}

TEST_CASE("classes: running statistics keep their buffer's format in a low-precision batch_norm") {
  const Lowered net = lower_text(
      small_net(), "extends = 'torch-autocast-fp16'\n[autocast]\nlow_precision = ['batch_norm']");
  CHECK(net.reads(net.op("bn1", "batch_norm")) == "fp16 fp16 fp16 fp32 fp32");
  CHECK(net.writes(net.op("bn1", "batch_norm")) == "fp16 fp32 fp32 fp32 fp32");
  CHECK(net.format(net.program.results.at("grad:bn1.weight")) == "fp16");
}

TEST_CASE("buffers: one that autocast made is kept in the lane's own autocast format") {
  GraphBuilder b("state");
  const Value x = b.input("x", {{2, 4}}), target = b.input("target", {{2, 4}});
  const Value scaled = b.op("mul", {b.linear("fc", x, 4), b.buffer("state", {4})}, {}, "mix");
  b.set_loss(b.op("mse_loss", {scaled, target}, {}, "loss"));
  Graph graph = b.finish();
  const auto format_in = [&graph](const std::string& preset) {
    const Lowered net = lower_net(graph, find_policy(preset));
    return net.format(net.program.external.at("b:state"));
  };
  CHECK(format_in("torch-autocast-fp16") == "fp32");
  graph.buffers.front().format = "bf16";
  CHECK(format_in("torch-autocast-fp16") == "fp16");
  CHECK(format_in("torch-autocast-bf16-cpu") == "bf16");
  CHECK(format_in("fp32") == "fp32");
  CHECK(format_in("tf32") == "fp32");
}

TEST_CASE("constants: one in the lane's own autocast format stays in it") {
  GraphBuilder b("constant");
  const Value x = b.input("x", {{2, 4}}), target = b.input("target", {{2, 4}});
  const Value scaled = b.op("sub", {b.linear("fc", x, 4), b.buffer("eye", {4})}, {}, "mix");
  b.set_loss(b.op("mse_loss", {scaled, target}, {}, "loss"));
  Graph graph = b.finish();
  graph.constants.emplace_back().name = "eye";
  graph.constants.back().type = {{4}};
  graph.constants.back().format = "bf16";
  graph.buffers.clear();
  for (Node& node : graph.nodes) std::ranges::replace(node.inputs, "b:eye", "c:eye");
  const auto format_in = [&graph](const std::string& preset) {
    const Lowered net = lower_net(graph, find_policy(preset));
    return net.format(net.program.external.at("c:eye"));
  };
  CHECK(format_in("torch-autocast-bf16") == "bf16");
  CHECK(format_in("torch-autocast-fp16") == "fp32");
  CHECK(format_in("fp32") == "fp32");
}

TEST_CASE("batch_norm: the presets of PyTorch's CPU take its formula") {
  const auto inner = [](const std::string& preset) {
    const Lowered net = lower_net(small_net(), find_policy(preset));
    return net.op("bn1", "batch_norm").inner_formats;
  };
  CHECK(inner("torch-autocast-bf16-cpu") == std::vector{&find_format("fp32")});
  CHECK(inner("torch-autocast-bf16").empty());
  CHECK(inner("fp32").empty());
}

// a (M) + b, which arrive in different formats.
Graph two_operands(const std::string& op) {
  GraphBuilder b("two");
  const Value x = b.input("x", {{2, 4}}), target = b.input("target", {{2, 4}});
  const Value low = b.linear("fc1", x, 4);  // fp16 under autocast
  const Value mixed = b.op(op, {low, b.parameter("scale", {2, 4})}, {}, "mix");
  b.set_loss(b.op("mse_loss", {mixed, target}, {}, "loss"));
  return b.finish();
}

TEST_CASE("follow and promote: mixed operands meet in the wider format, or in FP32") {
  const Lowered follow = lower_net(two_operands("mul"), find_policy("torch-autocast-fp16"));
  const Instruction& mul = follow.op("mix", "mul");
  CHECK(follow.reads(mul) == "fp16 fp32");
  CHECK(follow.writes(mul) == "fp32");
  // The gradient of the FP16 operand is rounded to FP16, that of the FP32 one is not.
  CHECK(follow.format(follow.program.results.at("grad:scale")) == "fp32");
  CHECK(follow.reads(follow.op("fc1", "linear_backward_bias")) == "fp16");

  const Lowered odd = lower_text(two_operands("mul"),
                                 "extends = 'torch-autocast-fp16'\n[storage]\nweight = 'bf16'");
  CHECK(odd.reads(odd.op("mix", "mul")) == "fp16 bf16");
  CHECK(odd.writes(odd.op("mix", "mul")) == "fp32");

  const Lowered promote = lower_text(
      two_operands("mul"), "extends = 'torch-autocast-fp16'\n[autocast]\npromote = ['mul']");
  CHECK(promote.writes(promote.op("mix", "mul")) == "fp32");
  // Promoted operands get their gradients in the promoted format.
  for (const Instruction& i : promote.program.instructions) {
    const Node& node = promote.graph.nodes[i.node];
    if (i.kind == InstructionKind::kOp && node.layer == "mix" && node.is_backward()) {
      CHECK(promote.writes(i) == "fp32");
    }
  }
}

TEST_CASE("follow: an operand of no dimension does not promote one that has some") {
  const auto graph = [](const Shape& scale) {
    GraphBuilder b("number");
    const Value x = b.input("x", {{2, 4}}), target = b.input("target", {{2, 4}});
    const Value low = b.linear("fc1", x, 4);
    const Value y = b.op("mul", {low, b.parameter("scale", scale)}, {}, "mix");
    b.set_loss(b.op("mse_loss", {y, target}, {}, "loss"));
    return b.finish();
  };
  const Lowered number = lower_net(graph({}), find_policy("torch-autocast-fp16"));
  CHECK(number.reads(number.op("mix", "mul")) == "fp16 fp16");  // the number is cast
  CHECK(number.writes(number.op("mix", "mul")) == "fp16");
  CHECK(number.format(number.program.results.at("grad:scale")) == "fp16");
  const Lowered vector = lower_net(graph({1}), find_policy("torch-autocast-fp16"));
  CHECK(vector.reads(vector.op("mix", "mul")) == "fp16 fp32");
  CHECK(vector.writes(vector.op("mix", "mul")) == "fp32");
}

TEST_CASE("cast_like: the format of its example, whatever the policy; its gradient that of x") {
  GraphBuilder b("scores");
  const Value x = b.input("x", {{2, 4}}), target = b.input("target", {{2, 4}});
  const Value low = b.linear("fc1", x, 4);
  const Value wide = b.op("softmax", {low}, {{"dim", -1}}, "scores");
  const Value like = b.op("cast_like", {wide, low}, {}, "back");
  b.set_loss(b.op("mse_loss", {b.linear("fc2", like, 4), target}, {}, "loss"));
  const Graph graph = b.finish();
  for (const auto& [policy, softmax, back] : {std::array{"torch-autocast-fp16", "fp32", "fp16"},
                                              {"torch-autocast-bf16", "fp32", "bf16"},
                                              {"pure-fp16", "fp16", "fp16"},
                                              {"fp32", "fp32", "fp32"}}) {
    CAPTURE(policy);
    const Lowered net = lower_net(graph, find_policy(policy));
    CHECK(net.writes(net.op("scores", "softmax")) == softmax);
    CHECK(net.writes(net.op("back", "cast_like")) == back);
    CHECK(net.writes(net.op("back", "cast_backward")) == softmax);
  }
  const Lowered truth = lower_net(graph, find_policy("torch-autocast-fp16"), /*fp64=*/true);
  CHECK(truth.writes(truth.op("back", "cast_like")) == "fp64");
}

TEST_CASE("sdpa: the math model widens before its products, the others do not") {
  const auto sum_of = [](const char* model, const char* op) {
    GraphBuilder b("attention");
    const Value q = b.parameter("q", {2, 4, 8}), k = b.parameter("k", {2, 4, 8});
    const Value y = b.op("sdpa", {q, k, b.parameter("v", {2, 4, 8})},
                         {{"model", std::string(model)}}, "attention");
    b.set_loss(b.op("mse_loss", {y, b.input("target", {{2, 4, 8}})}, {}, "loss"));
    const Lowered net = lower_net(b.finish(), find_policy("pure-fp16"));
    const Instruction& run = net.op("attention", op);
    CHECK(net.writes(run).starts_with("fp16"));
    return run.gemm_accumulator->format->name;
  };
  for (const char* op : {"sdpa", "sdpa_backward"}) {
    CHECK(sum_of("math", op) == "fp32");
    CHECK(sum_of("math_reduced", op) == "fp16");
    CHECK(sum_of("flash", op) == "fp16");
  }
}

TEST_CASE("recurrent: PyTorch's CPU keeps a GRU's state in FP32 and an LSTM's in BF16") {
  const auto lowered = [](const std::string& op, bool both_ways, const char* policy) {
    GraphBuilder b(op);
    const int64_t gates = op == "lstm" ? 4 : 3, cells = both_ways ? 2 : 1;
    std::vector<Value> operands = {b.input("x", {{5, 2, 3}})};
    operands[0] = b.op("mul", {operands[0], b.parameter("scale", {5, 2, 3})}, {}, "scale");
    for (int64_t i = 0; i < gates - 2; ++i) {
      operands.push_back(b.input("state" + std::to_string(i), {{cells, 2, 4}}));
    }
    for (int64_t i = 0; i < cells; ++i) {
      const std::string name = std::to_string(i);
      operands.push_back(b.parameter("w_ih" + name, {gates * 4, 3}));
      operands.push_back(b.parameter("w_hh" + name, {gates * 4, 4}));
    }
    const Value y =
        b.op(op, operands,
             {{"has_bias", false}, {"batch_first", false}, {"bidirectional", both_ways}}, "rnn");
    b.set_loss(b.op("mse_loss", {y, b.input("target", {{5, 2, 4 * cells}})}, {}, "loss"));
    return lower_net(b.finish(), find_policy(policy));
  };
  const Lowered gru = lowered("gru", false, "torch-autocast-bf16-cpu");
  CHECK(gru.reads(gru.op("rnn", "gru")) == "bf16 fp32 bf16 bf16");
  CHECK(gru.writes(gru.op("rnn", "gru")) == "fp32 fp32 bf16 fp32");  // y, h_n, gates, h
  CHECK(gru.writes(gru.op("rnn", "gru_backward")) == "bf16 fp32 bf16 bf16");
  const Lowered lstm = lowered("lstm", false, "torch-autocast-bf16-cpu");
  CHECK(lstm.reads(lstm.op("rnn", "lstm")) == "bf16 bf16 bf16 bf16 bf16");
  CHECK(lstm.writes(lstm.op("rnn", "lstm")) == "bf16 bf16 bf16 bf16 bf16 bf16");
  // Each direction casts x for itself: the gradients meet in x's own format.
  const Lowered both = lowered("lstm", true, "torch-autocast-bf16-cpu");
  CHECK(both.writes(both.op("rnn", "lstm_backward")).starts_with("fp32 bf16 bf16 bf16"));
  const Lowered cuda = lowered("gru", false, "torch-autocast-bf16");
  CHECK(cuda.reads(cuda.op("rnn", "gru")) == "bf16 bf16 bf16 bf16");
  CHECK(cuda.writes(cuda.op("rnn", "gru")) == "bf16 bf16 fp32 bf16");
  CHECK(cuda.op("rnn", "gru").inner_formats.empty());
}

// y = linear(x); loss(softmax(y) * linear2(y)): y is read in FP16 by one op and in FP32 by another.
TEST_CASE("gradient joins: parts of different formats meet in the value's own") {
  GraphBuilder b("join");
  const Value x = b.input("x", {{2, 4}}), target = b.input("target", {{2, 4}});
  const Value y = b.linear("fc1", x, 4);
  const Value p = b.op("softmax", {y}, {}, "soft");
  const Value z = b.linear("fc2", y, 4);
  b.set_loss(b.op("mse_loss", {b.op("mul", {p, z}, {}, "mix"), target}, {}, "loss"));
  const Lowered net = lower_net(b.finish(), find_policy("torch-autocast-fp16"));
  const Instruction& join = net.op("fc1", "add");
  CHECK(net.reads(join) == "fp16 fp16");
  CHECK(net.writes(join) == "fp16");
  CHECK(net.writes(net.op("soft", "softmax_backward")) == "fp32");
}

// One weight in two linears: torch adds both gradients on the cached FP16 cast.
TEST_CASE("gradient joins: a parameter used in one format is summed in that format") {
  GraphBuilder b("shared");
  const Value x = b.input("x", {{2, 4}}), target = b.input("target", {{2, 4}});
  const Value w = b.parameter("w", {4, 4});
  const Value h = b.op("linear", {x, w}, {}, "first");
  b.set_loss(b.op("mse_loss", {b.op("linear", {h, w}, {}, "second"), target}, {}, "loss"));
  const Graph graph = b.finish();
  const Lowered net = lower_net(graph, find_policy("torch-autocast-fp16"));
  CHECK(net.format(net.program.results.at("grad:w")) == "fp16");
  CHECK(net.op("first", "linear").inputs[1] == net.op("second", "linear").inputs[1]);
  // Without the cache each cast widens its own gradient first.
  const Policy uncached = parse_policy(
      "extends = \"torch-autocast-fp16\"\n[autocast]\nweight_cache = false\n", "uncached.toml");
  const Lowered wide = lower_net(graph, uncached);
  CHECK(wide.format(wide.program.results.at("grad:w")) == "fp32");
}

}  // namespace
}  // namespace lockstep
