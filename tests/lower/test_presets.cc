// Presets: the peculiarities of each, read from its own source, on one small network. Lists without
// a row here are compared as a whole in test_policy.cc.
#include <doctest/doctest.h>

#include <map>

#include "src/policy/find_policy.h"
#include "tests/lower/lowered.h"

namespace lockstep {
namespace {

// An op of every kind that the presets disagree about, from images to the loss.
Graph quirk_net() {
  GraphBuilder b("quirks");
  Value x = b.input("images", {{2, 1, 6, 6}});
  const Value labels = b.input("labels", {{2}, ElementType::kInt});
  x = b.conv2d("conv", x, 2, /*kernel=*/3);
  x = b.relu("relu", b.batch_norm("bn", x));
  x = b.flatten("flatten", b.max_pool2d("pool", x, 2, 2));
  const Value h = b.linear("fc1", x, 4);
  Value y = b.op("gelu", {h}, {}, "gelu");
  y = b.layer_norm("ln", y);
  y = b.op("rms_norm", {y, b.parameter("rms.weight", {4})}, {}, "rms");
  y = b.op("softmax", {y}, {}, "softmax");
  y = b.op("matmul", {y, b.parameter("mm.weight", {4, 4})}, {}, "mm");
  y = b.op("add", {y, h}, {}, "add");
  y = b.op("cat", {y, h}, {{"dim", int64_t{1}}}, "cat");
  x = b.linear("fc2", b.op("sqrt", {b.op("exp", {y}, {}, "exp")}, {}, "sqrt"), 3);
  b.set_loss(b.op("cross_entropy", {x, labels}, {}, "loss"));
  return b.finish();
}

struct Quirk {
  std::string preset, layer, op, reads, writes;
};
const Quirk kQuirks[] = {
    // apex O1: gelu on its FP32 list, add and cat promote, batch_norm is on no list.
    {"O1", "conv", "conv2d", "fp16 fp16 fp16", "fp16"},
    {"O1", "bn", "batch_norm", "fp16 fp32 fp32 fp32 fp32", "fp16 fp32 fp32 fp32 fp32"},
    {"O1", "gelu", "gelu", "fp16", "fp32"},
    {"O1", "rms", "rms_norm", "fp32 fp32", "fp32 fp32"},
    {"O1", "mm", "matmul", "fp16 fp16", "fp16"},
    {"O1", "add", "add", "fp16 fp16", "fp16"},
    {"O1", "loss", "cross_entropy", "fp16 int", "fp32"},
    {"torch-autocast-fp16", "gelu", "gelu", "fp16", "fp16"},
    // 2.12 moved rms_norm. Its operand here is already FP32, after layer_norm: see the next test.
    {"torch-autocast-fp16", "softmax", "softmax", "fp32", "fp32"},
    // On the CPU softmax, layer_norm and exp follow.
    {"torch-autocast-bf16-cpu", "ln", "layer_norm", "bf16 fp32 fp32", "bf16 fp32 fp32"},
    {"torch-autocast-bf16-cpu", "exp", "exp", "bf16", "bf16"},
    {"torch-autocast-fp16-cpu", "mm", "matmul", "fp16 fp16", "fp16"},
    {"torch-autocast-fp16-cpu", "loss", "cross_entropy", "fp16 int", "fp32"},
    // apex O2: the affine batch norm stays FP32 between FP16 activations, layer norms do not; the
    // output is cast to FP32 for the loss.
    {"O2", "conv", "conv2d", "fp16 fp16 fp16", "fp16"},
    {"O2", "bn", "batch_norm", "fp16 fp32 fp32 fp32 fp32", "fp16 fp32 fp32 fp32 fp32"},
    {"O2", "ln", "layer_norm", "fp16 fp16 fp16", "fp16 fp32 fp32"},
    {"O2", "softmax", "softmax", "fp16", "fp16"},
    {"O2", "loss", "cross_entropy", "fp16 int", "fp32"},
    {"O3", "bn", "batch_norm", "fp16 fp16 fp16 fp16 fp16", "fp16 fp16 fp16 fp32 fp32"},
    {"O3", "loss", "cross_entropy", "fp16 int", "fp32"},
    {"O0", "fc1", "linear", "fp32 fp32 fp32", "fp32"},
    // model.half() leaves the output, and so the loss, in FP16.
    {"half", "bn", "batch_norm", "fp16 fp16 fp16 fp16 fp16", "fp16 fp16 fp16 fp32 fp32"},
    {"half", "loss", "cross_entropy", "fp16 int", "fp16"},
    {"half-bn-fp32", "bn", "batch_norm", "fp16 fp32 fp32 fp32 fp32", "fp16 fp32 fp32 fp32 fp32"},
    {"half-bn-fp32", "relu", "relu", "fp16", "fp16"},
    {"half-bn-fp32", "loss", "cross_entropy", "fp16 int", "fp16"},
    {"fp16-optimizer-static", "bn", "batch_norm", "fp16 fp32 fp32 fp32 fp32",
     "fp16 fp32 fp32 fp32 fp32"},
    {"fp16-optimizer-dynamic", "loss", "cross_entropy", "fp16 int", "fp32"},
    // TF32 by family: the other family's factors stay FP32. A bias is not a factor.
    {"tf32-matmul", "conv", "conv2d", "fp32 fp32 fp32", "fp32"},
    {"tf32-matmul", "fc1", "linear", "tf32 tf32 fp32", "fp32"},
    {"tf32-matmul", "mm", "matmul", "tf32 tf32", "fp32"},
    {"tf32-matmul", "fc1", "linear_backward_weight", "tf32 tf32", "fp32"},
    {"tf32-matmul", "conv", "conv2d_backward_weight", "fp32 fp32", "fp32"},
    {"tf32-conv", "conv", "conv2d", "tf32 tf32 fp32", "fp32"},
    {"tf32-conv", "conv", "conv2d_backward_weight", "tf32 tf32", "fp32"},
    {"tf32-conv", "fc1", "linear", "fp32 fp32 fp32", "fp32"},
    {"tf32-conv", "fc1", "linear_backward_weight", "fp32 fp32", "fp32"},
    {"tf32", "conv", "conv2d", "tf32 tf32 fp32", "fp32"},
    {"tf32", "mm", "matmul", "tf32 tf32", "fp32"},
    // MXNet: softmax and norms FP32, batch_dot in the widest of its operands and not in FP16,
    // batch_norm neutral. In its BF16 lists norms and softmax follow; dropout etc. are FP32.
    {"mxnet-amp", "conv", "conv2d", "fp16 fp16 fp16", "fp16"},
    {"mxnet-amp", "bn", "batch_norm", "fp16 fp32 fp32 fp32 fp32", "fp16 fp32 fp32 fp32 fp32"},
    {"mxnet-amp", "ln", "layer_norm", "fp16 fp32 fp32", "fp32 fp32 fp32"},
    {"mxnet-amp", "mm", "matmul", "fp32 fp32", "fp32"},
    {"mxnet-amp", "add", "add", "fp32 fp16", "fp32"},
    {"mxnet-amp", "loss", "cross_entropy", "fp16 int", "fp32"},
    {"mxnet-amp-bf16", "gelu", "gelu", "bf16", "bf16"},
    {"mxnet-amp-bf16", "ln", "layer_norm", "bf16 fp32 fp32", "bf16 fp32 fp32"},
    {"mxnet-amp-bf16", "rms", "rms_norm", "bf16 fp32", "fp32 fp32"},
    {"mxnet-amp-bf16", "bn", "batch_norm", "bf16 fp32 fp32 fp32 fp32", "bf16 fp32 fp32 fp32 fp32"},
    {"mxnet-multi-precision", "bn", "batch_norm", "fp16 fp32 fp32 fp32 fp32",
     "fp16 fp32 fp32 fp32 fp32"},
    {"mxnet-multi-precision", "loss", "cross_entropy", "fp16 int", "fp16"},
    {"mxnet-multi-precision-fp32-softmax", "fc2", "linear", "fp16 fp16 fp16", "fp16"},
    {"mxnet-multi-precision-fp32-softmax", "loss", "cross_entropy", "fp16 int", "fp32"},
    {"pure-fp16-kahan", "fc1", "linear", "fp16 fp16 fp16", "fp16"},
    {"pure-bf16", "loss", "cross_entropy", "bf16 int", "bf16"},
    {"pure-bf16-master", "fc1", "linear", "bf16 bf16 bf16", "bf16"},
};

TEST_CASE("presets: the formats each one's own rules give") {
  std::map<std::string, Lowered> lowered;
  for (const Quirk& quirk : kQuirks) {
    CAPTURE(quirk.preset);
    CAPTURE(quirk.layer);
    if (!lowered.contains(quirk.preset)) {
      lowered.emplace(quirk.preset, lower_net(quirk_net(), find_policy(quirk.preset)));
    }
    const Lowered& net = lowered.at(quirk.preset);
    CHECK(net.reads(net.op(quirk.layer, quirk.op)) == quirk.reads);
    CHECK(net.writes(net.op(quirk.layer, quirk.op)) == quirk.writes);
  }
}

TEST_CASE("torch 2.12: rms_norm of an FP16 value is FP32, in 2.11 it is FP16") {
  GraphBuilder b("rms");
  const Value x = b.input("x", {{2, 4}}), target = b.input("target", {{2, 4}});
  const Value y = b.op("rms_norm", {b.linear("fc", x, 4)}, {}, "rms");
  b.set_loss(b.op("mse_loss", {y, target}, {}, "loss"));
  const Graph graph = b.finish();
  for (const char* name : {"torch-autocast-fp16", "torch-autocast-bf16"}) {
    const std::string low = name + std::string(name).rfind('-') + 1;
    for (const char* version : {"2.11", "2.12"}) {
      const Lowered net = lower_net(graph, find_policy(std::string(name) + ":" + version));
      const std::string written = net.writes(net.op("rms", "rms_norm"));
      CHECK(written.substr(0, 4) == (version == std::string("2.11") ? low : "fp32"));
    }
  }
}

// Stored between steps: weights, masters, arithmetic, state, rounding of updates, loss scale.
struct Keeping {
  std::string preset, weight, master, arithmetic, state;
  OptimizerSteps steps;
  UpdateRounding rounding;
  std::string accumulator;
};
const Keeping kKeeping[] = {
    {"O1", "fp32", "", "fp32", "fp32", OptimizerSteps::kElementary, UpdateRounding::kStorage,
     "fp32_fused"},
    {"O2", "fp16", "fp32", "fp32", "fp32", OptimizerSteps::kElementary, UpdateRounding::kStorage,
     "fp32_fused"},
    {"O3", "fp16", "", "fp16", "fp16", OptimizerSteps::kTorch, UpdateRounding::kStorage,
     "fp32_fused"},
    {"half", "fp16", "", "fp16", "fp16", OptimizerSteps::kTorch, UpdateRounding::kStorage,
     "fp32_fused"},
    {"fp16-optimizer-static", "fp16", "fp32", "fp32", "fp32", OptimizerSteps::kElementary,
     UpdateRounding::kStorage, "fp32_fused"},
    {"mxnet-multi-precision", "fp16", "fp32", "fp32", "fp32", OptimizerSteps::kElementary,
     UpdateRounding::kStorage, "fp32_fused"},
    {"pure-fp16", "fp16", "", "fp16", "fp16", OptimizerSteps::kElementary, UpdateRounding::kStorage,
     "fp16"},
    {"pure-fp16-master", "fp16", "fp32", "fp32", "fp32", OptimizerSteps::kElementary,
     UpdateRounding::kStorage, "fp16"},
    {"pure-fp16-stochastic", "fp16", "", "fp32", "fp16", OptimizerSteps::kElementary,
     UpdateRounding::kStochastic, "fp16"},
    {"pure-fp16-kahan", "fp16", "", "fp16", "fp16", OptimizerSteps::kElementary,
     UpdateRounding::kKahan, "fp16"},
    {"pure-bf16", "bf16", "", "bf16", "bf16", OptimizerSteps::kTorch, UpdateRounding::kStorage,
     "fp32_fused"},
    {"pure-bf16-master", "bf16", "fp32", "fp32", "fp32", OptimizerSteps::kElementary,
     UpdateRounding::kStorage, "fp32_fused"},
    {"pure-bf16-stochastic", "bf16", "", "fp32", "bf16", OptimizerSteps::kTorch,
     UpdateRounding::kStochastic, "fp32_fused"},
    {"pure-bf16-kahan", "bf16", "", "bf16", "bf16", OptimizerSteps::kTorch, UpdateRounding::kKahan,
     "fp32_fused"},
};

TEST_CASE("as-captured: every stored value in the model's own format, FP32 where it has none") {
  GraphBuilder b("narrow");
  const Value x = b.input("x", {{3, 4}});
  const Value h = b.linear(
      "fc1", b.layer_norm("norm", b.op("linear", {x, b.parameter("w", {4, 4})}, {}, "first")), 2);
  b.set_loss(b.op("mse_loss", {h, b.input("t", {{3, 2}})}, {}, ""));
  Graph graph = b.finish();
  for (Parameter& p : graph.parameters) p.format = p.layer == "norm" ? "" : "bf16";
  graph.inputs[0].format = "bf16";
  const Graph step = differentiate(graph);
  const SiteTable sites = make_sites(step, 0);
  const auto format_of = [&](const Program& program, const std::string& id) {
    return program.values[static_cast<size_t>(program.external.at(id))].format->name;
  };
  const Program narrow = lower(step, sites, find_policy("as-captured-bf16"));
  CHECK(format_of(narrow, "p:w") == "bf16");
  CHECK(format_of(narrow, "p:norm.weight") == "fp32");
  CHECK(format_of(narrow, "in0") == "bf16");
  CHECK(format_of(narrow, "in1") == "fp32");
  const Program uniform = lower(step, sites, find_policy("pure-bf16"));
  CHECK(format_of(uniform, "p:norm.weight") == "bf16");
  CHECK(format_of(uniform, "in1") == "bf16");
  CHECK(format_of(lower(step, sites, find_policy("fp32")), "p:w") == "fp32");
  for (Parameter& p : graph.parameters) p.format.clear();
  const Graph unnamed = differentiate(graph);
  const Program fallback = lower(unnamed, make_sites(unnamed, 0), find_policy("as-captured-bf16"));
  CHECK(format_of(fallback, "p:norm.weight") == "bf16");
}

TEST_CASE("presets: what each keeps between steps, and how it is updated") {
  for (const Keeping& row : kKeeping) {
    CAPTURE(row.preset);
    const Policy policy = find_policy(row.preset);
    CHECK(policy.weight->name == row.weight);
    CHECK((policy.has_master(policy.weight) ? policy.master->name : "") == row.master);
    CHECK(policy.optimizer_arithmetic->name == row.arithmetic);
    CHECK(policy.optimizer_state->name == row.state);
    CHECK(policy.optimizer_steps == row.steps);
    CHECK(policy.update_rounding == row.rounding);
    CHECK(policy.gemm_accumulator->name == row.accumulator);
  }
}

TEST_CASE("loss scales of the presets that have one") {
  for (const char* name :
       {"O1", "O2", "fp16-optimizer-dynamic", "mxnet-amp", "torch-autocast-fp16-cpu"}) {
    CAPTURE(name);
    CHECK(find_policy(name).loss_scale.init_scale == 65536);
    CHECK(find_policy(name).loss_scale.growth_interval == 2000);
  }
  CHECK(find_policy("fp16-optimizer-static").loss_scale.kind == "static-unchecked");
  CHECK(find_policy("fp16-optimizer-static").loss_scale.init_scale == 128);
  for (const std::string name : {"O0", "O3", "half", "half-bn-fp32", "mxnet-multi-precision",
                                 "mxnet-amp-bf16", "torch-autocast-bf16-cpu", "pure-bf16"}) {
    CAPTURE(name);
    CHECK(find_policy(name).loss_scale.kind == "none");
  }
}

TEST_CASE("keep_fp32: a kept parameter has no master and is updated in FP32") {
  const Policy o2 = find_policy("O2"), half_bn = find_policy("half-bn-fp32");
  const Format *fp32 = &find_format("fp32"), *fp16 = &find_format("fp16");
  CHECK(o2.has_master(fp16));
  CHECK_FALSE(o2.has_master(fp32));
  CHECK(half_bn.arithmetic_of(fp16) == fp16);
  CHECK(half_bn.arithmetic_of(fp32) == fp32);
  CHECK(half_bn.state_of(fp32) == fp32);
  CHECK(half_bn.update_of(fp16) == fp32);  // torch adds the product before it rounds
  CHECK(find_policy("pure-fp16").update_of(fp16) == fp16);
}

// A batch norm whose weights are not parameters (affine=False) is cast with the model.
TEST_CASE("keep_fp32: a norm without parameters is not kept") {
  GraphBuilder b("plain_norm");
  const Value x = b.input("x", {{4, 3}}), target = b.input("target", {{4, 3}});
  const auto filled = [](float value) {
    Tensor tensor({3}, Container::kF32);
    std::ranges::fill(tensor.as<float>(), value);
    return tensor;
  };
  const Value one = b.constant("one", filled(1)), zero = b.constant("zero", filled(0));
  const Value mean = b.buffer("mean", {3}), var = b.buffer("var", {3});
  const Value h = b.linear("fc", x, 3);
  b.set_loss(b.op("mse_loss", {b.op("batch_norm", {h, one, zero, mean, var}, {}, "bn"), target}, {},
                  "loss"));
  const Lowered net = lower_net(b.finish(), find_policy("O2"));
  CHECK(net.format(net.program.external.at("b:mean")) == "fp16");
  CHECK(net.reads(net.op("bn", "batch_norm")) == "fp16 fp16 fp16 fp16 fp16");
  const Lowered kept = lower_net(quirk_net(), find_policy("O2"));
  CHECK(kept.format(kept.program.external.at("b:bn.running_mean")) == "fp32");
  CHECK(kept.format(kept.program.external.at("p:bn.weight")) == "fp32");
  CHECK(kept.format(kept.program.external.at("p:ln.weight")) == "fp16");
}

// O2 patches the model's forward: its inputs become FP16, its outputs FP32; the target of the loss,
// and terms the loss computes from the outputs, never pass through FP16.
TEST_CASE("[model]: inputs are cast where the model reads them, outputs where the loss does") {
  GraphBuilder b("borders");
  const Value x = b.input("x", {{2, 4}}), target = b.input("target", {{2, 4}});
  const Value y = b.linear("fc", x, 4);
  const Value error = b.op("mse_loss", {y, target}, {}, "loss");
  const Value size = b.op("sum", {b.op("mul", {y, y}, {}, "square")}, {}, "size");
  b.set_loss(b.op("add", {error, size}, {}, "total"));
  const Graph graph = b.finish();
  const Lowered net = lower_net(graph, find_policy("O2"));
  int joins = 0;
  CHECK(net.format(net.program.external.at("in0")) == "fp32");
  CHECK(net.reads(net.op("fc", "linear")) == "fp16 fp16 fp16");
  CHECK(net.reads(net.op("loss", "mse_loss")) == "fp16 fp32");
  CHECK(net.writes(net.op("loss", "mse_loss")) == "fp32");
  CHECK(net.writes(net.op("square", "mul")) == "fp32");
  CHECK(net.writes(net.op("total", "add")) == "fp32");
  CHECK(net.format(net.program.external.at("seed")) == "fp32");
  // The gradient of the output is FP32 and is cast where the model ends.
  CHECK(net.writes(net.op("loss", "mse_loss_backward")) == "fp32");
  CHECK(net.reads(net.op("fc", "linear_backward_weight")) == "fp16 fp16");

  // y is read three times after the border: the parts of its gradient are summed in FP32 and cast
  // once.
  for (const Instruction& i : net.program.instructions) {
    const Node& node = net.graph.nodes[i.node];
    if (i.kind != InstructionKind::kOp || !node.is_backward() || node.op != "add") continue;
    CHECK(net.reads(i) == "fp32 fp32");
    CHECK(net.writes(i) == "fp32");
    ++joins;
  }
  CHECK(joins == 2);

  GraphBuilder without("no_loss");
  const Value z = without.linear("fc", without.input("x", {{2, 4}}), 4);
  without.set_loss(without.op("sum", {z}, {}, "sum"));
  const std::string problem = problems_of(without.finish(), "extends = 'apex-o2'");
  CHECK(has(problem, "[model] needs a loss op"));
  CHECK(has(problem, "or leave [model] out"));
}

TEST_CASE("autocast off: a region's ops follow their operands, and torch's refusals are errors") {
  const std::string base = "extends = 'torch-autocast-fp16'\n[[rule]]\nautocast = 'off'\n";
  const Lowered net = lower_text(quirk_net(), base + "layer = 'softmax'");
  const Lowered ln = lower_text(quirk_net(), base + "layer = 'ln'");
  CHECK(net.writes(net.op("softmax", "softmax")) == "fp32");  // its operand is FP32 anyway
  CHECK(ln.writes(ln.op("gelu", "gelu")) == "fp16");
  CHECK(ln.writes(ln.op("ln", "layer_norm")) == "fp16 fp32 fp32");  // and no longer FP32
  const std::string problem = problems_of(quirk_net(), base + "layer = 'fc2'");
  CHECK(problem == "");  // FP32 operand and weight: torch accepts them, and no cast is left
  CHECK(has(problems_of(quirk_net(), base + "layer = 'gelu*'\nop = 'linear'"), "matches nothing"));

  GraphBuilder b("region");
  const Value x = b.input("x", {{2, 4}}), target = b.input("target", {{2, 4}});
  const Value y = b.linear("fc2", b.linear("fc1", x, 4), 4);
  b.set_loss(b.op("mse_loss", {y, target}, {}, "loss"));
  const Graph graph = b.finish();
  const std::string refused = problems_of(graph, base + "layer = 'fc2'");
  CHECK(has(refused, "fc2 linear: fp16 x fp32 in a region without autocast, an error in torch"));
  CHECK(has(refused, "compute = \"fp32\" casts the operands as well"));
  const Lowered cast = lower_text(graph,
                                  "extends = 'torch-autocast-fp16'\n[[rule]]\nlayer = "
                                  "'fc2'\ncompute = 'fp32'");
  CHECK(cast.writes(cast.op("fc2", "linear")) == "fp32");
}

}  // namespace
}  // namespace lockstep
