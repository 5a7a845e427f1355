// Elementwise ops and reductions: gradients against central differences, the formats of lowered
// casts, ops without a gradient, and dropout's masks. The values are compared with PyTorch's in
// tests/integration/compare/test_torch_ops_elementwise.py.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/kernels.h"
#include "src/core/random.h"
#include "src/graph/builder.h"
#include "src/lower/lower.h"
#include "src/policy/find_policy.h"
#include "tests/graph/one_op.h"
#include "tests/graph/run_graph.h"
#include "tests/lower/lowered.h"

namespace lockstep {
namespace {

using testing::gradient_error;
using testing::kGradientTolerance;
using testing::run_graph;

// For loss = mse(op(x + 1.5, ...), target): operands of at least 0.5, where every function has a
// derivative except at integers.
double worst_error(std::string_view op, const std::vector<Shape>& shapes,
                   Attributes attributes = {}, int output = 0) {
  GraphBuilder b("op");
  std::vector<Value> operands;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Value w = b.parameter("w" + std::to_string(i), shapes[i]);
    operands.push_back(b.op("add", {w}, {{"scalar", 1.5}}, ""));
  }
  Value y = b.op(op, operands, std::move(attributes), "");
  if (output > 0) y = output_id(b.graph().node(y), static_cast<size_t>(output));
  b.set_loss(b.op("mse_loss", {y, b.input("target", b.graph().type_of(y))}, {}, ""));
  return gradient_error(b.finish());
}

TEST_CASE("gradients: functions of one and two numbers") {
  for (const char* op :
       {"neg", "abs", "sqrt", "rsqrt", "reciprocal", "exp", "log", "tanh", "sigmoid", "silu",
        "gelu", "hardswish", "hardsigmoid", "leaky_relu", "elu", "softplus"}) {
    CAPTURE(op);
    CHECK(worst_error(op, {{3, 4}}) <= kGradientTolerance);
  }
  CHECK(worst_error("gelu", {{3, 4}}, {{"approximate", std::string("tanh")}}) <=
        kGradientTolerance);
  CHECK(worst_error("clamp", {{3, 4}}, {{"min", 1.0}, {"max", int64_t{2}}}) <= kGradientTolerance);
  CHECK(worst_error("pow", {{3, 4}}, {{"exponent", 2.5}}) <= kGradientTolerance);
  for (const char* op : {"add", "sub", "mul", "div", "minimum", "maximum", "pow"}) {
    CAPTURE(op);
    CHECK(worst_error(op, {{3, 1, 4}, {5, 1}}) <= kGradientTolerance);
    if (std::string(op) == "pow") continue;
    CHECK(worst_error(op, {{3, 4}}, {{"scalar", 1.25}}) <= kGradientTolerance);
  }
  CHECK(worst_error("add", {{3, 4}, {4}}, {{"alpha", -0.5}}) <= kGradientTolerance);
}

TEST_CASE("gradients: reductions and softmaxes over any dimension") {
  for (const Shape& dims : {Shape{}, Shape{0}, Shape{1}, Shape{0, 2}, Shape{-1, 1}}) {
    for (const char* op : {"sum", "mean", "amax", "logsumexp", "var_mean"}) {
      CAPTURE(op);
      CHECK(worst_error(op, {{3, 4, 2}}, {{"dims", dims}}) <= kGradientTolerance);
    }
    CHECK(worst_error("var_mean", {{3, 4, 2}}, {{"dims", dims}, {"keepdim", true}}, 1) <=
          kGradientTolerance);
  }
  for (const int64_t dim : {0, 1, -1}) {
    for (const char* op : {"softmax", "log_softmax", "cumsum", "max_dim"}) {
      CAPTURE(op);
      CHECK(worst_error(op, {{3, 4, 2}}, {{"dim", dim}}) <= kGradientTolerance);
    }
  }
}

TEST_CASE(
    "broadcasting: operands that are repeated as a whole are read again, with the same result") {
  using testing::run_op;
  // {1, 3, 64, 64} is repeated as a whole, {4, 1, 64, 64} is not; {64} is, but it is short.
  const Shape whole = {4, 3, 64, 64};
  const auto filled = [](const Shape& shape, double step) {
    Tensor tensor(shape, Container::kF64);
    double x = 0.25;
    for (double& value : tensor.as<double>()) value = x = std::fmod(x + step, 7.3) + 0.01;
    return tensor;
  };
  const auto mask_of = [](const Shape& shape) {
    Tensor tensor(shape, Container::kI32);
    int32_t i = 0;
    for (int32_t& value : tensor.as<int32_t>()) value = (++i * 7 % 11) % 3 == 0;
    return tensor;
  };
  const Tensor x = filled(whole, 0.5);
  int compared = 0;
  for (const Shape& shape :
       {Shape{64, 64}, Shape{1, 64, 64}, Shape{3, 64, 64}, Shape{1, 3, 64, 64}, Shape{1, 1, 64, 64},
        Shape{64}, Shape{1}, Shape{4, 1, 64, 64}, Shape{4, 3, 1, 64}, Shape{3, 64, 1}, whole}) {
    CAPTURE(to_string(shape));
    const Tensor small = filled(shape, 0.125), mask = mask_of(shape);
    const Tensor large = run_op("expand", {small}, {{"shape", whole}})[0];
    for (const char* op : {"add", "sub", "mul", "div", "minimum", "pow"}) {
      CAPTURE(op);
      CHECK(run_op(op, {x, small})[0].same_bits(run_op(op, {x, large})[0]));
      CHECK(run_op(op, {small, x})[0].same_bits(run_op(op, {large, x})[0]));
      ++compared;
    }
    const Tensor dy = filled(whole, 0.0625);
    for (const char* op :
         {"minimum_backward", "maximum_backward", "div_backward_divisor", "pow_backward"}) {
      CAPTURE(op);
      CHECK(run_op(op, {x, small, dy})[0].same_bits(run_op(op, {x, large, dy})[0]));
      CHECK(run_op(op, {small, x, dy})[0].same_bits(run_op(op, {large, x, dy})[0]));
      ++compared;
    }
    const Tensor y = filled(whole, 0.03125);
    CHECK(run_op("pow_backward_exponent", {x, small, y, dy})[0].same_bits(
        run_op("pow_backward_exponent", {x, large, y, dy})[0]));
    CHECK(run_op("pow_backward_exponent", {small, x, y, dy})[0].same_bits(
        run_op("pow_backward_exponent", {large, x, y, dy})[0]));
    const Tensor zeros(whole, Container::kF64);
    // The mask itself, repeated, as numbers.
    const Tensor repeated = run_op("masked_fill", {zeros, mask}, {{"value", 1.0}})[0];
    const auto flags = mask.as<int32_t>();
    const auto seen = repeated.as<double>();
    const Tensor as_numbers = [&] {
      Tensor numbers(shape, Container::kF64);
      for (size_t i = 0; i < flags.size(); ++i) numbers.as<double>()[i] = flags[i];
      return run_op("expand", {numbers}, {{"shape", whole}})[0];
    }();
    CHECK(repeated.same_bits(as_numbers));
    const Tensor passed = run_op("where_backward", {mask, x}, {{"branch", true}})[0];
    const Tensor blocked = run_op("where_backward", {mask, x}, {{"branch", false}})[0];
    bool equal = true;
    for (size_t i = 0; i < seen.size(); ++i) {
      equal &= passed.as<double>()[i] == (seen[i] != 0 ? x.as<double>()[i] : 0);
      equal &= blocked.as<double>()[i] == (seen[i] != 0 ? 0 : x.as<double>()[i]);
    }
    CHECK(equal);
  }
  CHECK(compared == 11 * (6 + 4));
}

TEST_CASE("autocast classes of the elementwise ops are those of torch's CUDA lists") {
  for (const char* op : {"exp", "log", "rsqrt", "reciprocal", "pow", "softplus", "sum", "cumsum",
                         "logsumexp", "log_softmax", "softmax"}) {
    CAPTURE(op);
    CHECK(find_op(op).cast_class == CastClass::kFp32);
  }
  for (const char* op :
       {"sub", "div", "neg", "sqrt", "tanh", "sigmoid", "silu", "gelu", "clamp", "mean", "amax",
        "max_dim", "var_mean", "where", "masked_fill", "dropout", "minimum", "detach"}) {
    CAPTURE(op);
    CHECK(find_op(op).cast_class == CastClass::kFollow);
  }
}

TEST_CASE("every forward op that gives floats has a gradient, or declares that it has none") {
  const std::set<std::string_view> inner = {"sum_to"};  // made by autodiff alone
  for (const OpDef& op : ops()) {
    if (op.name.find("_backward") != std::string_view::npos || inner.contains(op.name)) continue;
    CAPTURE(op.name);
    CHECK(((op.vjp != nullptr) == (op.differentiable_outputs > 0)));
  }
}

TEST_CASE(
    "cast: the output has the named format, fp64 only in the truth lane; the gradient has that of "
    "x") {
  GraphBuilder b("casts");
  const Value w = b.parameter("w", {4});
  const Value low = b.op("cast", {w}, {{"dtype", std::string("bf16")}}, "down");
  const Value high = b.op("cast", {low}, {{"dtype", std::string("fp32")}}, "up");
  const Value wide = b.op("cast", {high}, {{"dtype", std::string("fp64")}}, "wide");
  b.set_loss(b.op("mse_loss", {wide, b.input("t", {{4}})}, {}, "loss"));
  const Graph graph = b.finish();
  for (const char* policy : {"fp32", "torch-autocast-fp16"}) {
    CAPTURE(policy);
    const Lowered lane = lower_net(graph, find_policy(policy));
    CHECK(lane.writes(lane.op("down", "cast")) == "bf16");
    CHECK(lane.reads(lane.op("up", "cast")) == "bf16");
    CHECK(lane.writes(lane.op("up", "cast")) == "fp32");
    CHECK(lane.writes(lane.op("up", "cast_backward")) == "bf16");
    CHECK(lane.reads(lane.op("down", "cast_backward")) == "bf16");
    CHECK(lane.writes(lane.op("down", "cast_backward")) == "fp32");
    // These lanes hold their values in FP32 containers, the loss and its seed included.
    CHECK(lane.writes(lane.op("wide", "cast")) == "fp32");
    CHECK(lane.writes(lane.op("loss", "mse_loss")) == "fp32");
  }
  const Lowered truth = lower_net(graph, find_policy("fp32"), /*fp64=*/true);
  CHECK(truth.writes(truth.op("down", "cast")) == "fp64");
  CHECK(truth.writes(truth.op("down", "cast_backward")) == "fp64");
}

TEST_CASE("formats: autocast runs sum in FP32, mean and a product with a number in their input's") {
  GraphBuilder b("formats");
  const Value h = b.linear("fc", b.input("x", {{2, 3}}), 4);
  const Value scaled = b.op("mul", {h}, {{"scalar", 0.1}}, "scale");
  const Value mean = b.op("mean", {scaled}, {{"dims", Shape{1}}}, "mean");
  b.set_loss(b.op("sum", {mean}, {}, "sum"));
  const Lowered lane = lower_net(b.finish(), find_policy("torch-autocast-fp16"));
  CHECK(lane.writes(lane.op("scale", "mul")) == "fp16");
  CHECK(lane.writes(lane.op("mean", "mean")) == "fp16");
  CHECK(lane.reads(lane.op("sum", "sum")) == "fp16");  // widening needs no cast
  CHECK(lane.writes(lane.op("sum", "sum")) == "fp32");
  CHECK(lane.writes(lane.op("sum", "sum_backward")) == "fp32");
  CHECK(lane.writes(lane.op("mean", "mean_backward")) == "fp16");
}

TEST_CASE("detach: no gradient, and none is computed for its operands") {
  GraphBuilder b("detach");
  const Value a = b.op("detach", {b.parameter("a", {3})}, {}, "stop");
  const Value y = b.op("mul", {a, b.parameter("b", {3})}, {}, "mul");
  b.set_loss(b.op("mse_loss", {y, b.input("t", {{3}})}, {}, "loss"));
  const Graph step = differentiate(b.finish());
  CHECK(step.gradients.size() == 1);
  CHECK(step.gradients.contains("b"));
  int products = 0;
  for (const Node& node : step.nodes) products += node.is_backward() && node.op == "mul";
  CHECK(products == 1);
}

TEST_CASE("dropout: two nodes of one step draw different masks, a step redraws them") {
  GraphBuilder b("dropouts");
  const Value x = b.input("x", {{64, 64}});
  const Value first = b.op("dropout", {x}, {{"p", 0.5}}, "first");
  const Value second = b.op("dropout", {first}, {{"p", 0.5}}, "second");
  const Graph graph = b.finish();
  const auto mask_of = [&](const Value& value, RandomKey key) {
    const Node& node = graph.node(value);
    Tensor in = testing::distinct_values({64, 64}, 1), y({64, 64}, Container::kF64);
    Tensor mask({64, 64}, Container::kI32);
    const std::vector<const Tensor*> inputs = {&in};
    const std::vector<Tensor*> outputs = {&y, &mask};
    const Accumulator& accumulator = find_accumulator("fp64_fused");
    OpCall call{node, inputs, outputs, scalar_kernels(), accumulator, accumulator};
    call.random = key;
    find_op("dropout").run(call);
    const auto values = mask.as<int32_t>();
    return std::vector<int32_t>(values.begin(), values.end());
  };
  CHECK(mask_of(first, {1, 2, 3}) == mask_of(second, {1, 2, 3}));
  CHECK(mask_of(first, {1, 2, 3}) != mask_of(first, {1, 2, 4}));
  CHECK(mask_of(first, {1, 2, 3}) != mask_of(first, {1, 3, 3}));
  CHECK(mask_of(first, {1, 2, 3}) != mask_of(first, {2, 2, 3}));
}

// Output 0 of the op, written at once or, with `piece`, in pieces of so many elements from the last
// to the first.
Tensor output_in_pieces(const Graph& graph, const std::vector<Tensor>& operands,
                        Container container, int64_t piece) {
  const Node& node = graph.nodes.back();
  std::vector<const Tensor*> inputs;
  for (const Tensor& operand : operands) inputs.push_back(&operand);
  std::vector<Tensor> results;
  for (const TensorType& type : node.outputs) {
    const bool is_int = type.element == ElementType::kInt;
    results.emplace_back(type.shape, is_int ? Container::kI32 : container);
  }
  std::vector<Tensor*> outputs;
  for (Tensor& result : results) outputs.push_back(&result);
  const Accumulator& accumulator =
      find_accumulator(container == Container::kF64 ? "fp64_fused" : "fp32_fused");
  OpCall call{node, inputs, outputs, active_kernels(), accumulator, accumulator};
  call.random = {1, 2, 3};
  FillRange fill;
  if (piece > 0) call.output_fill = &fill;
  find_op(node.op).run(call);
  CHECK(static_cast<bool>(fill) == (piece > 0));
  const int64_t count = results[0].size();
  for (int64_t i = piece > 0 ? (count - 1) / piece : -1; i >= 0; --i) {
    fill(i * piece, std::min(count, (i + 1) * piece));
  }
  return std::move(results[0]);
}

// Numbers in [-2, 2); masks are 0 or 1.
std::vector<Tensor> random_operands(const std::vector<TensorType>& types, Container container) {
  std::vector<Tensor> operands;
  for (const TensorType& type : types) {
    const bool is_mask = type.element == ElementType::kInt;
    Tensor& operand = operands.emplace_back(type.shape, is_mask ? Container::kI32 : container);
    const RandomStream random(1, RandomPurpose::kTest, static_cast<uint32_t>(operands.size()));
    for (int64_t i = 0; i < operand.size(); ++i) {
      const double x = 4 * random.uniform(static_cast<uint64_t>(i)) - 2;
      const auto at = static_cast<size_t>(i);
      if (is_mask) {
        operand.as<int32_t>()[at] = x > 0 ? 1 : 0;
      } else if (container == Container::kF64) {
        operand.as<double>()[at] = x;
      } else {
        operand.as<float>()[at] = static_cast<float>(x);
      }
    }
  }
  return operands;
}

TEST_CASE("ops that leave their output to be written in pieces write the same numbers") {
  const Shape whole = {3, 40, 120}, large = {40, 120}, row = {120}, column = {40, 1};
  struct Case {
    std::string_view op;
    std::vector<TensorType> operands;
    Attributes attributes = {};
  };
  std::vector<Case> cases = {
      {"relu", {{whole}}},
      {"relu_backward", {{whole}, {whole}}},
      {"gelu", {{whole}}, {{"approximate", std::string("tanh")}}},
      {"silu_backward", {{whole}, {whole}}},
      {"add", {{whole}, {row}}, {{"alpha", 0.5}}},
      {"mul", {{whole}}, {{"scalar", 3.0}}},
      {"minimum_backward", {{whole}, {large}, {whole}}},
      {"div_backward_divisor", {{column}, {whole}, {whole}}},
      {"pow", {{large}, {whole}}},
      {"pow_backward", {{whole}, {row}, {whole}}},
      {"pow_backward_exponent", {{whole}, {large}, {whole}, {whole}}},
      {"atan2", {{whole}, {column}}},
      {"dropout", {{whole}}, {{"p", 0.5}}},
      {"dropout_backward", {{whole}, {column, ElementType::kInt}}, {{"p", 0.5}}},
      {"where", {{column, ElementType::kInt}, {whole}, {row}}},
      {"where", {{large, ElementType::kInt}, {whole}, {large}}},
      {"where_backward", {{large, ElementType::kInt}, {whole}}, {{"branch", false}}},
      {"masked_fill", {{whole}, {column, ElementType::kInt}}, {{"value", -2.0}}},
      {"linear", {{whole}, {{7, 120}}, {{7}}}},
      {"permute", {{whole}}, {{"dims", std::vector<int64_t>{1, 2, 0}}}},
      {"permute", {{whole}}, {{"dims", std::vector<int64_t>{1, 0, 2}}}},
      {"expand", {{column}}, {{"shape", std::vector<int64_t>{3, 40, 120}}}},
      {"slice",
       {{whole}},
       {{"dim", int64_t{1}}, {"start", int64_t{5}}, {"end", int64_t{35}}, {"step", int64_t{2}}}},
  };
  for (const char* op : {"add", "sub", "mul", "div", "minimum"}) {
    for (const Shape& other : {whole, large, row, column}) {
      cases.push_back({op, {{whole}, {other}}});
      cases.push_back({op, {{other}, {whole}}});
    }
  }
  for (const Case& of : cases) {
    CAPTURE(of.op);
    GraphBuilder b("op");
    std::vector<Value> ids;
    for (const TensorType& type : of.operands) ids.push_back(b.input("x", type));
    b.op(of.op, ids, of.attributes, "");
    const Graph graph = b.finish();
    for (const Container container : {Container::kF32, Container::kF64}) {
      const std::vector<Tensor> operands = random_operands(of.operands, container);
      const Tensor at_once = output_in_pieces(graph, operands, container, 0);
      for (const int64_t piece : {1, 61, 5000, 100000}) {
        CAPTURE(piece);
        CHECK(output_in_pieces(graph, operands, container, piece).same_bits(at_once));
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
