// Lowering: golden programs of a small network under every preset, and the rules one by one.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/autodiff.h"
#include "src/graph/builder.h"
#include "src/graph/lower.h"

namespace lockstep {
namespace {

// conv, bn, relu, pool, flatten, linear, cross entropy: every cast class and every kind of operand.
Graph small_net() {
  GraphBuilder b("small");
  Value x = b.input("images", {{2, 1, 6, 6}});
  const Value labels = b.input("labels", {{2}, ElementType::kInt});
  x = b.conv2d("conv1", x, 2, /*kernel=*/3);  // (2,2,4,4)
  x = b.relu("relu1", b.batch_norm("bn1", x));
  x = b.max_pool2d("pool1", x, 2, 2);  // (2,2,2,2)
  x = b.flatten("flatten", x);         // (2,8)
  x = b.linear("fc1", x, 3);
  b.name_output("logits", x);
  b.set_loss(b.op("cross_entropy", {x, labels}, {}, "loss"));
  return b.finish();
}

struct Lowered {
  Graph graph;
  SiteTable sites;
  Program program;

  // The one kOp instruction of a node with this op in this layer.
  const Instruction& op(const std::string& layer, const std::string& name) const {
    for (const Instruction& i : program.instructions) {
      const Node& node = graph.nodes[i.node];
      if (i.kind == InstructionKind::kOp && node.layer == layer && node.op == name) return i;
    }
    throw std::logic_error("no op " + name + " in " + layer);
  }
  const std::string& format(int value) const { return program.values[value].format->name; }
  // Formats an op reads, e.g. "fp16 fp16 fp32"; integers as "int".
  std::string reads(const Instruction& i) const {
    std::vector<std::string> names;
    for (int v : i.inputs) names.push_back(program.values[v].format ? format(v) : "int");
    return join(names, " ");
  }
  std::string writes(const Instruction& i) const {
    std::vector<std::string> names;
    for (int v : i.outputs) names.push_back(program.values[v].format ? format(v) : "int");
    return join(names, " ");
  }
  size_t count(InstructionKind kind) const {
    size_t n = 0;
    for (const Instruction& i : program.instructions) n += i.kind == kind;
    return n;
  }
};

Lowered lower_net(const Graph& forward, const Policy& policy, bool fp64 = false) {
  Lowered out{differentiate(forward), {}, {}};
  out.sites = make_sites(out.graph, 1);
  out.program = lower(out.graph, out.sites, policy, fp64);
  return out;
}
Lowered lower_text(const Graph& forward, const std::string& toml) {
  return lower_net(forward, parse_policy(toml, "test.toml"));
}
std::string problems_of(const Graph& forward, const std::string& toml) {
  try {
    lower_text(forward, toml);
  } catch (const InputError& error) {
    return join(error.problems(), "\n");
  }
  return "";
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void check_golden(const std::string& name, const std::string& text) {
  const std::string path = LOCKSTEP_SOURCE_DIR "/tests/golden/" + name;
  if (std::getenv("LOCKSTEP_UPDATE_GOLDEN") != nullptr) write_text_file_atomically(path, text);
  CHECK(text == read_text_file(path));
}

const std::vector<std::string> kPresets = {"fp32", "tf32", "torch-autocast-fp16",
                                           "torch-autocast-bf16", "pure-fp16"};

TEST_CASE("golden: the small network under every preset and in the truth lane") {
  for (const std::string& name : kPresets) {
    CAPTURE(name);
    const Lowered net = lower_net(small_net(), find_policy(name));
    check_golden("lower_" + name + ".txt", to_text(net.program, net.graph, net.sites));
  }
  const Lowered truth = lower_net(small_net(), find_policy("fp32"), /*fp64=*/true);
  check_golden("lower_fp64.txt", to_text(truth.program, truth.graph, truth.sites));
}

// What every program must keep, whatever the policy.
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
      const bool of_graph = !site.node.starts_with("optimizer:");
      const bool value = site.point != Point::kAccumulator;
      CHECK(measured.count(site.id) == (of_graph && value ? 1 : 0));
    }
  }
}

TEST_CASE("programs: casts only where a format is too narrow for what arrives") {
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
  // FP16 logits widen without a cast; the loss is FP32, its gradient comes back as FP32 and is cast
  // where it enters the linear's backward.
  CHECK(net.reads(net.op("loss", "cross_entropy")) == "fp16 int");
  CHECK(net.writes(net.op("loss", "cross_entropy")) == "fp32");
  CHECK(net.format(net.program.external.at("seed")) == "fp32");
  CHECK(net.writes(net.op("loss", "cross_entropy_backward")) == "fp32");
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

TEST_CASE("rules: compute keeps a layer in FP32, forward and backward") {
  const Lowered net = lower_text(
      small_net(), "extends = 'torch-autocast-fp16'\n[[rule]]\nlayer = 'fc1'\ncompute = 'fp32'");
  CHECK(net.reads(net.op("fc1", "linear")) == "fp16 fp32 fp32");  // FP16 x widens exactly
  CHECK(net.writes(net.op("fc1", "linear")) == "fp32");
  CHECK(net.reads(net.op("fc1", "linear_backward_weight")) == "fp16 fp32");
  CHECK(net.format(net.program.results.at("grad:fc1.weight")) == "fp32");
  CHECK(net.format(net.program.results.at("grad:conv1.weight")) == "fp16");
  // The gradient leaves fc1 in FP32 and is cast to FP16 where flatten, which is FP16, takes it.
  CHECK(net.writes(net.op("fc1", "linear_backward_input")) == "fp32");
}

TEST_CASE("rules: compute also lifts narrower accumulators and TF32 factors") {
  const Lowered pure =
      lower_text(small_net(), "extends = 'pure-fp16'\n[[rule]]\nlayer = 'fc1'\ncompute = 'fp32'");
  CHECK(pure.op("fc1", "linear").gemm_accumulator->name == "fp32_fused");
  CHECK(pure.op("fc1", "linear_backward_weight").gemm_accumulator->name == "fp32_fused");
  CHECK(pure.op("fc1", "linear_backward_bias").reduce_accumulator->name == "fp32_fused");
  CHECK(pure.op("conv1", "conv2d").gemm_accumulator->name == "fp16");
  CHECK(pure.writes(pure.op("fc1", "linear")) == "fp32");
  const Lowered tf32 =
      lower_text(small_net(), "extends = 'tf32'\n[[rule]]\nlayer = 'fc1'\ncompute = 'fp32'");
  CHECK(tf32.reads(tf32.op("fc1", "linear")) == "fp32 fp32 fp32");
  CHECK(tf32.reads(tf32.op("fc1", "linear_backward_weight")) == "fp32 fp32");
  CHECK(tf32.reads(tf32.op("conv1", "conv2d")) == "tf32 tf32 fp32");
}

TEST_CASE("rules: an accumulator reaches an op and its gradients, later rules win") {
  const Lowered net = lower_text(small_net(), R"(
[[rule]]
op = "linear"
accumulator = "fp16"
[[rule]]
op = "linear_backward_weight"
accumulator = "bf16"
)");
  CHECK(net.op("fc1", "linear").gemm_accumulator->name == "fp16");
  CHECK(net.op("fc1", "linear").accumulator_site >= 0);
  CHECK(net.op("fc1", "linear_backward_input").gemm_accumulator->name == "fp16");
  CHECK(net.op("fc1", "linear_backward_weight").gemm_accumulator->name == "bf16");
  CHECK(net.op("conv1", "conv2d").gemm_accumulator->name == "fp32_fused");
  CHECK(net.op("conv1", "conv2d").accumulator_site == -1);
}

TEST_CASE("rules: format and rounding change one kind of value") {
  const Lowered net = lower_text(small_net(), R"(
[[rule]]
layer = "fc1"
role = "weight"
format = "fp8_e4m3"
[[rule]]
role = "grad_weight"
point = "output"
format = "bf16"
rounding = "stochastic"
)");
  const Instruction& forward = net.op("fc1", "linear");
  CHECK(net.reads(forward) == "fp32 fp8_e4m3 fp8_e4m3");  // weight and bias are both weights
  CHECK(net.writes(forward) == "fp32");
  CHECK(net.reads(net.op("fc1", "linear_backward_input")) == "fp8_e4m3 fp32");
  const Instruction& gradient = net.op("fc1", "linear_backward_weight");
  CHECK(net.writes(gradient) == "bf16");
  CHECK(gradient.roundings[0].rounding == Rounding::kStochastic);
  CHECK(net.writes(net.op("fc1", "linear_backward_input")) == "fp32");
}

TEST_CASE("rules: one that matches nothing is an error with its line and the names there are") {
  const std::string problems = problems_of(small_net(), R"([[rule]]
layer = "fc2"
compute = "fp32"
[[rule]]
layer = "bn1"
accumulator = "fp16"
[[rule]]
layer = "conv1"
op = "linear"
compute = "fp32"
[[rule]]
role = "optimizer_state"
format = "fp16"
[[rule]]
layer = "fc1"
compute = "fp32"
)");
  CAPTURE(problems);
  CHECK(has(problems, "line 1: [[rule]] layer = \"fc2\": matches nothing in small"));
  CHECK(has(problems, "did you mean 'fc1'?"));
  CHECK(has(problems, "layers: bn1, conv1, fc1, flatten, loss, pool1, relu1"));
  CHECK(has(problems, "line 4: "));
  CHECK(has(problems, "no op there has a sum of products"));
  CHECK(has(problems, "line 7: "));
  CHECK(has(problems, "forward ops there: conv2d"));
  CHECK(has(problems, "line 11: "));
  CHECK(has(problems, "what the optimizer keeps is set in [optimizer]"));
  CHECK_FALSE(has(problems, "line 14: "));
}

TEST_CASE("forward graphs: an evaluation lowers without complaint about backward rules") {
  const Graph forward = small_net();
  const Policy policy = parse_policy(
      "extends = 'torch-autocast-fp16'\n[[rule]]\nrole = 'grad_weight'\nformat = 'fp32'", "p.toml");
  const Program program = lower(forward, make_sites(forward, 0), policy);
  CHECK_FALSE(program.external.contains("seed"));
  CHECK(program.values[program.results.at("loss")].format->name == "fp32");
}

TEST_CASE("buffers: a new value the buffer cannot hold is an error, a wider buffer is not") {
  const std::string rule = "[[rule]]\nlayer = 'bn1'\nrole = 'buffer'\npoint = 'output'\n";
  CHECK(
      has(problems_of(small_net(), "[storage]\nbuffer = 'fp16'\n" + rule + "format = 'bf16'"),
          "buffer 'bn1.running_mean' is stored in fp16, which cannot hold its new value in bf16"));
  CHECK(problems_of(small_net(), rule + "format = 'bf16'") == "");
}

TEST_CASE("classes: running statistics keep their buffer's format in a low-precision batch_norm") {
  const Lowered net = lower_text(
      small_net(), "extends = 'torch-autocast-fp16'\n[autocast]\nlow_precision = ['batch_norm']");
  CHECK(net.reads(net.op("bn1", "batch_norm")) == "fp16 fp16 fp16 fp32 fp32");
  CHECK(net.writes(net.op("bn1", "batch_norm")) == "fp16 fp32 fp32 fp32 fp32");
  CHECK(net.format(net.program.results.at("grad:bn1.weight")) == "fp16");
}

// a (M) + b where the two arrive in different formats.
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
  const Lowered net = lower_net(b.finish(), find_policy("torch-autocast-fp16"));
  CHECK(net.format(net.program.results.at("grad:w")) == "fp16");
  CHECK(net.op("first", "linear").inputs[1] == net.op("second", "linear").inputs[1]);
}

}  // namespace
}  // namespace lockstep
