// Ops that are one kernel in PyTorch and several nodes in a graph: FP32 inside under every policy,
// and one rounding at the end, to the format given by the class of the whole.
#include <doctest/doctest.h>

#include <set>

#include "src/graph/composed_ops.h"
#include "src/policy/find_policy.h"
#include "tests/lower/lowered.h"
#include "tests/support/refusal.h"

namespace lockstep {
namespace {

TEST_CASE("composed ops: names differ from those of ops, are sorted, and a policy may list them") {
  std::string last;
  for (const ComposedOp& op : composed_ops()) {
    CAPTURE(op.name);
    CHECK(last < op.name);
    last = op.name;
    CHECK_FALSE(op.help.empty());
    CHECK_THROWS_AS(find_op(op.name), InputError);
    CHECK(find_composed_op(op.name) == &op);
    CHECK(own_class(std::string(op.name)) == op.cast_class);
    const Policy policy = parse_policy(
        "[autocast]\nformat = 'fp16'\nlow_precision = ['" + std::string(op.name) + "']", "x.toml");
    CHECK(policy.class_of(std::string(op.name)) == CastClass::kLowPrecision);
  }
  CHECK(find_composed_op("linear") == nullptr);
  CHECK_THROWS_WITH_AS(parse_policy("[autocast]\nformat = 'fp16'\nfp32 = ['mihs']", "x.toml"),
                       doctest::Contains("did you mean 'mish'?"), InputError);
}

// fc1, an op of one kernel that multiplies by itself, fc2, a loss.
Graph composed(const std::string& of, bool widens = true, bool with_wide_operand = false) {
  GraphBuilder b("composed");
  const Value x = b.input("x", {{2, 4}}), target = b.input("target", {{2, 4}});
  const Value low = b.linear("fc1", x, 4);
  Attributes borders = {{"of", of}};
  if (widens) borders["dtype"] = std::string("fp32");
  const Value inside = b.op("composed_operand", {low}, borders, "whole");
  const Value product = b.op("mul", {inside, inside}, {}, "whole");
  const Value sum = b.op("sigmoid", {product}, {}, "whole");
  const std::vector<Value> operands =
      with_wide_operand ? std::vector{sum, low, x} : std::vector{sum, low};
  const Value y = b.op("composed_result", operands, {{"of", of}}, "whole");
  b.set_loss(b.op("mse_loss", {b.linear("fc2", y, 4), target}, {}, "loss"));
  return b.finish();
}

// `operand`: its format by the class, also that of its gradient (widening needs no cast).
void check(const Lowered& net, const std::string& operand, const std::string& inside,
           const std::string& result) {
  std::string of_operand;
  for (const Instruction& i : net.program.instructions) {
    const Node& node = net.graph.nodes[i.node];
    if (i.kind != InstructionKind::kOp || node.op != "cast_backward") continue;
    if (net.graph.node(node.forward_node).op == "composed_operand") of_operand = net.writes(i);
  }
  CHECK(of_operand == operand);
  CHECK(net.writes(net.op("whole", "composed_operand")) == inside);
  CHECK(net.writes(net.op("whole", "mul")) == inside);
  CHECK(net.writes(net.op("whole", "sigmoid")) == inside);
  CHECK(net.writes(net.op("whole", "composed_result")) == result);
}

TEST_CASE("composed ops: the class of the whole decides the borders, inside is FP32") {
  const auto under = [](const char* of, const char* policy) {
    return lower_net(composed(of), find_policy(policy));
  };
  check(under("mish", "torch-autocast-fp16"), "fp16", "fp32", "fp16");
  check(under("norm", "torch-autocast-fp16"), "fp32", "fp32", "fp32");
  check(under("norm", "torch-autocast-bf16-cpu"), "bf16", "fp32", "bf16");
  check(under("nll_loss", "torch-autocast-bf16-cpu"), "fp32", "fp32", "fp32");
  check(under("norm", "pure-fp16"), "fp16", "fp32", "fp16");
  check(under("norm", "fp32"), "fp32", "fp32", "fp32");
  check(under("norm", "mxnet-amp"), "fp32", "fp32", "fp32");
  const Lowered truth = lower_net(composed("norm"), find_policy("torch-autocast-fp16"), true);
  check(truth, "fp64", "fp64", "fp64");
}

TEST_CASE("composed ops: gradients are FP32 inside, and rounded at the borders") {
  const Lowered net = lower_net(composed("mish"), find_policy("torch-autocast-fp16"));
  std::vector<std::string> borders;
  for (const Instruction& i : net.program.instructions) {
    const Node& node = net.graph.nodes[i.node];
    if (i.kind != InstructionKind::kOp || !node.is_backward() || node.layer != "whole") continue;
    if (node.op == "cast_backward") {
      borders.push_back(net.reads(i) + " " + net.writes(i));
    } else {
      CHECK(net.writes(i).starts_with("fp32"));
    }
  }
  CHECK(borders == std::vector<std::string>{"fp16 fp32", "fp32 fp16"});
}

TEST_CASE("composed ops: lists, rules and regions apply to the whole") {
  const std::string low = "[autocast]\nformat = 'bf16'\nlow_precision = ['linear', 'norm']\n";
  check(lower_text(composed("norm"), low), "bf16", "fp32", "bf16");
  // On no list: its own row applies.
  check(lower_text(composed("cosine_similarity"), "[autocast]\nformat = 'bf16'\n"), "fp32", "fp32",
        "fp32");
  const std::string base = "extends = 'torch-autocast-fp16'\n[[rule]]\nlayer = 'whole'\n";
  check(lower_text(composed("mish"), base + "compute = 'fp32'"), "fp32", "fp32", "fp32");
  check(lower_text(composed("norm"), base + "compute = 'fp16'"), "fp16", "fp32", "fp16");
  check(lower_text(composed("norm"), base + "autocast = 'off'"), "fp16", "fp32", "fp16");
}

TEST_CASE("composed ops: promotion counts the operands, not the values computed in FP32") {
  for (const char* of : {"addcmul", "lerp"}) {
    CAPTURE(of);
    const Policy policy = find_policy("torch-autocast-fp16");
    check(lower_net(composed(of), policy), "fp16", "fp32", "fp16");
    check(lower_net(composed(of, true, /*with_wide_operand=*/true), policy), "fp16", "fp32",
          "fp32");
  }
}

TEST_CASE("composed ops: with several kernels only the operands are cast") {
  const auto under = [](const char* of, const char* policy) {
    return lower_net(composed(of, /*widens=*/false), find_policy(policy));
  };
  check(under("triplet_margin_loss", "torch-autocast-fp16"), "fp32", "fp32", "fp32");
  check(under("cosine_similarity", "torch-autocast-bf16-cpu"), "bf16", "bf16", "bf16");
  check(under("triplet_margin_loss", "pure-fp16"), "fp16", "fp16", "fp16");
}

TEST_CASE("composed ops: sums inside are FP32 for every [reduce]") {
  GraphBuilder b("norm");
  const Value x = b.input("x", {{2, 4}}), target = b.input("target", {{2}});
  const Value inside = b.op("composed_operand", {b.linear("fc1", x, 4)},
                            {{"of", std::string("norm")}, {"dtype", std::string("fp32")}}, "whole");
  const Value sum = b.op("sum", {inside}, {{"dims", std::vector<int64_t>{1}}}, "whole");
  const Value y = b.op("composed_result", {sum, sum}, {{"of", std::string("norm")}}, "whole");
  b.set_loss(b.op("mse_loss", {y, target}, {}, "loss"));
  const Lowered net = lower_net(b.finish(), find_policy("pure-fp16"));
  CHECK(net.op("whole", "sum").reduce_accumulator->format->name == "fp32");
  CHECK(net.op("loss", "mse_loss").reduce_accumulator->format->name == "fp16");
}

TEST_CASE("composed ops: a loss among them ends the model") {
  GraphBuilder b("loss");
  const Value x = b.input("x", {{2, 4}});
  const Value inside =
      b.op("composed_operand", {b.linear("fc1", x, 4)}, {{"of", std::string("nll_loss")}}, "loss");
  b.set_loss(b.op("mean", {inside}, {}, "loss"));
  const Lowered net = lower_net(b.finish(), find_policy("apex-o2"));
  CHECK(net.writes(net.op("fc1", "linear")) == "fp16");
  CHECK(net.writes(net.op("loss", "mean")) == "fp32");  // after [model] output
}

TEST_CASE("composed ops: `of` must be an op with a class, `dtype` must be fp32") {
  const auto problem = [](const char* of, const char* dtype) {
    return testing::error_of([&] {
      GraphBuilder b("wrong");
      b.op("composed_operand", {b.input("x", {{2}})},
           {{"of", std::string(of)}, {"dtype", std::string(dtype)}}, "whole");
    });
  };
  CHECK(problem("mish", "fp32").empty());
  CHECK(problem("cross_entropy", "fp32").empty());
  CHECK(problem("mihs", "fp32").find("did you mean 'mish'?") != std::string::npos);
  CHECK(problem("mish", "fp16").find("'dtype' is 'fp16', must be fp32") != std::string::npos);
}

}  // namespace
}  // namespace lockstep
