// Functions of one number, element by element, one row each. The formulas and derivatives are in
// emulation/math/elementwise_functions-inl.h.
#include <algorithm>
#include <array>
#include <limits>
#include <numbers>
#include <vector>

#include "src/graph/ops/gradient_steps.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A parameter of the function: its attribute, and its value if the attribute is absent.
struct Argument {
  std::string_view name;
  double fallback = 0;
};
struct Row {
  std::string_view name;
  Unary function;
  CastClass cast_class;
  std::string_view help, source;
  std::array<Argument, 2> parameters = {};
  Unary variant = function;  // with approximate = "tanh", for the op that has it
  ForeignNames foreign_names = {};
  Kink (*kink)(const Node& node) = nullptr;
  bool has_pole = false;           // f is infinite at `pole`
  bool has_gradient_pole = false;  // so is the backward row, at this operand 0
  double pole = 0;                 // a magnitude
  std::string_view outside = {};   // OpMeaning::outside
  // Where PyTorch's has several kernels (tools/autograd/derivatives.yaml). In FP32 and wider the
  // formula of elementwise_functions-inl.h applies.
  GradientInSteps gradient = {};
};

constexpr CastClass kFollow = CastClass::kFollow, kFp32 = CastClass::kFp32;
constexpr std::string_view kFollows = "CUDA autocast: not listed, runs in its input's type";
constexpr std::string_view kWide = "CUDA autocast: fp32";

constexpr Row kRows[] = {
    {.name = "neg",
     .function = Unary::kNeg,
     .cast_class = kFollow,
     .help = "y = -x",
     .source = kFollows},
    {.name = "abs",
     .function = Unary::kAbs,
     .cast_class = kFollow,
     .help = "y = |x|, derivative 0 at 0",
     .source = kFollows},
    {.name = "sqrt",
     .function = Unary::kSqrt,
     .cast_class = kFollow,
     .help = "y = sqrt(x)",
     .source = kFollows,
     .has_gradient_pole = true,
     .outside = "negative"},
    {.name = "rsqrt",
     .function = Unary::kRsqrt,
     .cast_class = kFp32,
     .help = "y = 1 / sqrt(x)",
     .source = kWide,
     .has_pole = true,
     .outside = "negative",
     .gradient =
         [](const auto& s, const auto& y, const auto& dy) {
           return s.product(s.scaled(dy, -0.5), s.product(s.square(y), y));
         }},
    {.name = "reciprocal",
     .function = Unary::kReciprocal,
     .cast_class = kFp32,
     .help = "y = 1 / x",
     .source = kWide,
     .has_pole = true,
     .gradient = [](const auto& s, const auto& y,
                    const auto& dy) { return s.scaled(s.product(dy, s.square(y)), -1); }},
    {.name = "exp",
     .function = Unary::kExp,
     .cast_class = kFp32,
     .help = "y = e^x",
     .source = kWide},
    {.name = "log",
     .function = Unary::kLog,
     .cast_class = kFp32,
     .help = "y = ln x",
     .source = kWide,
     .has_pole = true,
     .has_gradient_pole = true,
     .outside = "negative"},
    {.name = "tanh",
     .function = Unary::kTanh,
     .cast_class = kFollow,
     .help = "y = tanh(x)",
     .source = kFollows,
     .foreign_names = {.mxnet = "Activation"}},
    {.name = "sigmoid",
     .function = Unary::kSigmoid,
     .cast_class = kFollow,
     .help = "y = 1 / (1 + exp(-x))",
     .source = kFollows,
     .foreign_names = {.mxnet = "Activation"}},
    {.name = "silu",
     .function = Unary::kSilu,
     .cast_class = kFollow,
     .help = "y = x / (1 + exp(-x))",
     .source = kFollows},
    {.name = "gelu",
     .function = Unary::kGelu,
     .cast_class = kFollow,
     .help = "y = x Phi(x), Phi by erf, or with approximate = \"tanh\" by tanh",
     .source = kFollows,
     .variant = Unary::kGeluTanh,
     .foreign_names = {.mxnet = "LeakyReLU"}},
    {.name = "hardswish",
     .function = Unary::kHardswish,
     .cast_class = kFollow,
     .help = "y = x min(max(x + 3, 0), 6) / 6",
     .source = kFollows},
    {.name = "hardsigmoid",
     .function = Unary::kHardsigmoid,
     .cast_class = kFollow,
     .help = "y = min(max(x + 3, 0), 6) / 6",
     .source = kFollows},
    {.name = "leaky_relu",
     .function = Unary::kLeakyRelu,
     .cast_class = kFollow,
     .help = "y = x, or negative_slope x for x <= 0",
     .source = kFollows,
     .parameters = {{{"negative_slope", 0.01}}},
     .foreign_names = {.mxnet = "LeakyReLU"},
     .kink = positive_side},
    {.name = "elu",
     .function = Unary::kElu,
     .cast_class = kFollow,
     .help = "y = x, or alpha (e^x - 1) for x <= 0",
     .source = kFollows,
     .parameters = {{{"alpha", 1}}},
     .foreign_names = {.mxnet = "LeakyReLU"}},
    {.name = "softplus",
     .function = Unary::kSoftplus,
     .cast_class = kFp32,
     .help = "y = ln(1 + exp(beta x)) / beta, or x where beta x > threshold",
     .source = kWide,
     .parameters = {{{"beta", 1}, {"threshold", 20}}},
     .foreign_names = {.mxnet = "Activation"}},
    {.name = "clamp",
     .function = Unary::kClamp,
     .cast_class = kFollow,
     .help = "y = x limited to [min, max], as far as given; derivative 1 on the bounds",
     .source = kFollows,
     .parameters = {{{"min", -kInfinity}, {"max", kInfinity}}},
     .kink =
         [](const Node& node) {
           return Kink{static_cast<float>(double_attribute(node, "min", -kInfinity)),
                       static_cast<float>(double_attribute(node, "max", kInfinity))};
         }},
    {.name = "erf",
     .function = Unary::kErf,
     .cast_class = kFollow,
     .help = "y = erf(x) = 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x",
     .source = kFollows,
     .gradient =
         [](const auto& s, const auto& x, const auto& dy) {
           return s.product(
               s.scaled(s.of(Unary::kExp, s.scaled(s.square(x), -1)), 2 * std::numbers::inv_sqrtpi),
               dy);
         }},
    {.name = "expm1",
     .function = Unary::kExpm1,
     .cast_class = kFp32,
     .help = "y = e^x - 1",
     .source = kWide,
     .gradient = [](const auto& s, const auto& y,
                    const auto& dy) { return s.product(dy, s.plus(y, 1)); }},
    {.name = "log1p",
     .function = Unary::kLog1p,
     .cast_class = kFp32,
     .help = "y = ln(1 + x)",
     .source = kWide,
     .has_pole = true,
     .has_gradient_pole = true,
     .pole = 1,
     .outside = "less than -1",
     .gradient = [](const auto& s, const auto& x,
                    const auto& dy) { return s.quotient(dy, s.plus(x, 1)); }},
    {.name = "exp2",
     .function = Unary::kExp2,
     .cast_class = kFollow,
     .help = "y = 2^x",
     .source = kFollows,
     .gradient = [](const auto& s, const auto& y,
                    const auto& dy) { return s.scaled(s.product(dy, y), std::numbers::ln2); }},
    {.name = "sin",
     .function = Unary::kSin,
     .cast_class = kFollow,
     .help = "y = sin(x)",
     .source = kFollows,
     .gradient = [](const auto& s, const auto& x,
                    const auto& dy) { return s.product(dy, s.of(Unary::kCos, x)); }},
    {.name = "cos",
     .function = Unary::kCos,
     .cast_class = kFollow,
     .help = "y = cos(x)",
     .source = kFollows,
     .gradient = [](const auto& s, const auto& x,
                    const auto& dy) { return s.scaled(s.product(dy, s.of(Unary::kSin, x)), -1); }},
    {.name = "tan",
     .function = Unary::kTan,
     .cast_class = kFp32,
     .help = "y = tan(x)",
     .source = kWide,
     .gradient = [](const auto& s, const auto& y,
                    const auto& dy) { return s.product(dy, s.plus(s.square(y), 1)); }},
    {.name = "asin",
     .function = Unary::kAsin,
     .cast_class = kFp32,
     .help = "y = arcsin(x), NaN outside of [-1, 1]",
     .source = kWide,
     .has_gradient_pole = true,
     .pole = 1,
     .outside = "larger than 1"},
    {.name = "acos",
     .function = Unary::kAcos,
     .cast_class = kFp32,
     .help = "y = arccos(x), NaN outside of [-1, 1]",
     .source = kWide,
     .has_gradient_pole = true,
     .pole = 1,
     .outside = "larger than 1"},
    {.name = "atan",
     .function = Unary::kAtan,
     .cast_class = kFollow,
     .help = "y = arctan(x)",
     .source = kFollows,
     .gradient = [](const auto& s, const auto& x,
                    const auto& dy) { return s.quotient(dy, s.plus(s.square(x), 1)); }},
    {.name = "sinh",
     .function = Unary::kSinh,
     .cast_class = kFp32,
     .help = "y = sinh(x)",
     .source = kWide,
     .gradient = [](const auto& s, const auto& x,
                    const auto& dy) { return s.product(dy, s.of(Unary::kCosh, x)); }},
    {.name = "cosh",
     .function = Unary::kCosh,
     .cast_class = kFp32,
     .help = "y = cosh(x)",
     .source = kWide,
     .gradient = [](const auto& s, const auto& x,
                    const auto& dy) { return s.product(dy, s.of(Unary::kSinh, x)); }},
    {.name = "asinh",
     .function = Unary::kAsinh,
     .cast_class = kFollow,
     .help = "y = arsinh(x)",
     .source = kFollows,
     .gradient =
         [](const auto& s, const auto& x, const auto& dy) {
           return s.product(dy, s.of(Unary::kRsqrt, s.plus(s.square(x), 1)));
         }},
    {.name = "acosh",
     .function = Unary::kAcosh,
     .cast_class = kFollow,
     .help = "y = arcosh(x), NaN below 1",
     .source = kFollows,
     .outside = "less than 1",
     .gradient =
         [](const auto& s, const auto& x, const auto& dy) {
           return s.product(dy, s.of(Unary::kRsqrt, s.plus(s.square(x), -1)));
         }},
    {.name = "atanh",
     .function = Unary::kAtanh,
     .cast_class = kFollow,
     .help = "y = artanh(x), NaN outside of [-1, 1]",
     .source = kFollows,
     .has_pole = true,
     .has_gradient_pole = true,
     .pole = 1,
     .outside = "larger than 1"},
    {.name = "lgamma",
     .function = Unary::kLgamma,
     .cast_class = kFollow,
     .help = "y = ln |Gamma(x)|",
     .source = kFollows,
     .has_pole = true,
     .gradient = [](const auto& s, const auto& x,
                    const auto& dy) { return s.product(dy, s.of(Unary::kDigamma, x)); }},
    {.name = "digamma",
     .function = Unary::kDigamma,
     .cast_class = kFollow,
     .help = "y = the derivative of ln |Gamma(x)|",
     .source = kFollows,
     .has_pole = true},
    {.name = "floor",
     .function = Unary::kFloor,
     .cast_class = kFollow,
     .help = "y = the largest whole number that is at most x; derivative 0",
     .source = kFollows},
    {.name = "ceil",
     .function = Unary::kCeil,
     .cast_class = kFollow,
     .help = "y = the least whole number that is at least x; derivative 0",
     .source = kFollows},
    {.name = "round",
     .function = Unary::kRound,
     .cast_class = kFollow,
     .help = "y = the nearest whole number, halves to the even one; derivative 0",
     .source = kFollows},
    {.name = "trunc",
     .function = Unary::kTrunc,
     .cast_class = kFollow,
     .help = "y = x without its fraction; derivative 0",
     .source = kFollows},
};

const Row& row_of(std::string_view forward_op) {
  for (const Row& row : kRows) {
    if (row.name == forward_op) return row;
  }
  throw std::logic_error("unary: no row for op '" + std::string(forward_op) + "'");
}

constexpr std::string_view kBackward = "_backward";
const Row& row_of(const Node& node) {
  std::string_view op = node.op;
  if (op.ends_with(kBackward)) op.remove_suffix(kBackward.size());
  return row_of(op);
}

Unary function_of(const Node& node) {
  const Row& row = row_of(node);
  const bool is_variant = string_attribute(node, "approximate", "none") == "tanh";
  return is_variant ? row.variant : row.function;
}

FunctionParameters parameters_of(const Node& node) {
  const auto& [a, b] = row_of(node).parameters;
  return {double_attribute(node, a.name, a.fallback), double_attribute(node, b.name, b.fallback)};
}

std::vector<TensorType> infer_forward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  parameters_of(node);  // their types are checked here
  const std::string approximate = string_attribute(node, "approximate", "none");
  require(approximate == "none" || approximate == "tanh", node,
          "attribute 'approximate' is '" + approximate + "', must be none or tanh");
  return {inputs[0]};
}

void vjp(GradientBuilder& builder, const Node& node) {
  const std::string saved =
      saves_output(function_of(node)) ? output_id(node, 0) : node.inputs.at(0);
  builder.add_node(node, node.op + std::string(kBackward), {saved, builder.output_gradient(node)},
                   node.attributes, {0});
}

void run_forward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    map_operand<T>(call, [unary = call.kernels.of<T>().unary, function = function_of(call.node),
                          parameters = parameters_of(call.node)](const T* x, T* y, int64_t count) {
      unary(function, parameters, x, y, count);
    });
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  require_shape(node, inputs, 1, inputs[0].shape, "the shape of x");
  return {inputs[0]};
}

template <typename T>
void run_gradient_in_steps(const OpCall& call) {
  const auto count = static_cast<size_t>(call.inputs[0]->size());
  const auto values = [&](size_t i) {
    return std::vector<T>(input<T>(call, i), input<T>(call, i) + count);
  };
  const GradientSteps<T> steps(call.kernels.of<T>(), *inner_format(call));
  const auto formula = row_of(call.node).gradient.template of<T>();
  std::ranges::copy(formula(steps, values(0), values(1)), output<T>(call, 0));
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    if (row_of(call.node).gradient && inner_format(call) != nullptr) {
      return run_gradient_in_steps<T>(call);
    }
    map_operands<T>(
        call,
        [backward = call.kernels.of<T>().unary_backward, function = function_of(call.node),
         parameters = parameters_of(call.node)](const T* x, const T* dy, T* dx, int64_t count) {
          backward(function, parameters, x, dy, dx, count);
        });
  });
}

// The names of the backward rows, to which string_views point.
const std::string& backward_name(const Row& row) {
  static const auto names = [] {
    std::array<std::string, std::size(kRows)> made;
    for (size_t i = 0; i < made.size(); ++i) {
      made[i] = std::string(kRows[i].name) + std::string(kBackward);
    }
    return made;
  }();
  return names[static_cast<size_t>(&row - kRows)];
}

}  // namespace

std::vector<OpDef> unary_ops() {
  std::vector<OpDef> rows;
  for (const Row& row : kRows) {
    OpDef forward{
        .name = row.name,
        .help = row.help,
        .source = row.source,
        .cast_class = row.cast_class,
        .infer = infer_forward,
        .vjp = vjp,
        .run = run_forward,
        .foreign_names = row.foreign_names,
        .formats = {.rounds_inside = row.gradient ? RoundsInside::kAlways : RoundsInside::kNever},
        .meaning = {.kink = row.kink,
                    .pole_operand = row.has_pole ? 0 : -1,
                    .pole_at = row.pole,
                    .outside = row.outside}};
    for (const Argument& parameter : row.parameters) {
      if (!parameter.name.empty()) forward.attributes.push_back(parameter.name);
    }
    if (row.variant != row.function) forward.attributes.push_back("approximate");
    OpDef backward{
        .name = backward_name(row),
        .help = saves_output(row.function) ? "dx = dy f'(x) from y; operands y, dy"
                                           : "dx = dy f'(x); operands x, dy",
        .source = "chain rule",
        .cast_class = row.cast_class,
        .min_inputs = 2,
        .max_inputs = 2,
        .attributes = forward.attributes,
        .infer = infer_backward,
        .run = run_backward,
        .meaning = {.pole_operand = row.has_gradient_pole ? 0 : -1, .pole_at = row.pole}};
    rows.push_back(std::move(forward));
    rows.push_back(std::move(backward));
  }
  return rows;
}

}  // namespace lockstep
