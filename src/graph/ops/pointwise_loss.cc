// Losses of one term per element: mse, l1, smooth_l1, huber, kl_div, bce_with_logits. Each has one
// row; the formulas are in emulation/kernels/scalar/elements/pointwise_loss.h. The sum of the terms
// goes through the reduce accumulator; the mean is that sum divided by the number of elements.
#include <stdexcept>

#include "emulation/kernels/args/loss_args.h"
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/choice.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

struct LossRow {
  std::string_view name, backward_name;
  PointwiseLoss loss;
  std::string_view parameter = {};  // attribute name, "" if there is none
  int max_inputs = 2;               // beyond two: weight, pos_weight
  std::string_view help, source;
  ForeignNames foreign_names = {};
};
// MXNet: Gluon's losses end in ops of the FP32 list; these are the symbolic names of the same
// losses.
constexpr LossRow kLosses[] = {
    {.name = "mse_loss",
     .backward_name = "mse_loss_backward",
     .loss = PointwiseLoss::kMse,
     .help = "(x - target)^2, reduced; operands of equal shape",
     .source = "torch.nn.functional.mse_loss",
     .foreign_names = {.mxnet = "LinearRegressionOutput"}},
    {.name = "l1_loss",
     .backward_name = "l1_loss_backward",
     .loss = PointwiseLoss::kL1,
     .help = "|x - target|, reduced",
     .source = "torch.nn.functional.l1_loss",
     .foreign_names = {.mxnet = "MAERegressionOutput"}},
    {.name = "smooth_l1_loss",
     .backward_name = "smooth_l1_loss_backward",
     .loss = PointwiseLoss::kSmoothL1,
     .parameter = "beta",
     .help = "(x - target)^2 / (2 beta) where |x - target| < beta, else |x - target| - beta / 2, "
             "reduced",
     .source = "torch.nn.functional.smooth_l1_loss",
     .foreign_names = {.mxnet = "smooth_l1"}},
    {.name = "huber_loss",
     .backward_name = "huber_loss_backward",
     .loss = PointwiseLoss::kHuber,
     .parameter = "delta",
     .help =
         "(x - target)^2 / 2 where |x - target| <= delta, else delta (|x - target| - delta / 2), "
         "reduced",
     .source = "torch.nn.functional.huber_loss"},
    {.name = "kl_div",
     .backward_name = "kl_div_backward",
     .loss = PointwiseLoss::kKlDiv,
     .help = "target (log target - x), reduced (batchmean: the sum divided by the first extent); "
             "log_target: the target is given as its logarithm",
     .source = "torch.nn.functional.kl_div"},
    {.name = "bce_with_logits",
     .backward_name = "bce_with_logits_backward",
     .loss = PointwiseLoss::kBceWithLogits,
     .max_inputs = 4,
     .help = "weight ((1 - t) x + (1 + (pos_weight - 1) t) log(1 + exp(-x))), reduced; operands x, "
             "target, weight?, pos_weight?, the latter two broadcast to x",
     .source = "torch.nn.functional.binary_cross_entropy_with_logits",
     .foreign_names = {.torch = "binary_cross_entropy_with_logits",
                       .mxnet = "LogisticRegressionOutput"}},
};

const LossRow& row_of(std::string_view op) {
  for (const LossRow& row : kLosses) {
    if (row.name == op || row.backward_name == op) return row;
  }
  throw std::logic_error("no loss row for '" + std::string(op) + "'");
}

enum class Reduction : size_t { kMean, kSum, kNone, kBatchMean };
Reduction reduction_of(const Node& node, const LossRow& row) {
  constexpr std::string_view kNames[] = {"mean", "sum", "none", "batchmean"};
  const size_t allowed = row.loss == PointwiseLoss::kKlDiv ? 4 : 3;
  return static_cast<Reduction>(
      choice_attribute(node, "reduction", std::span(kNames).first(allowed)));
}

// The divisor of the sum of the terms.
template <typename T>
T divisor(Reduction reduction, const Shape& shape) {
  if (reduction == Reduction::kMean) return static_cast<T>(element_count(shape));
  return reduction == Reduction::kBatchMean ? static_cast<T>(shape.at(0)) : T(1);
}

Shape loss_shape(Reduction reduction, const Shape& x) {
  return reduction == Reduction::kNone ? x : Shape{};
}

void require_loss_operands(const Node& node, const LossRow& row, std::span<const TensorType> inputs,
                           size_t count) {
  require_floats(node, inputs);
  const Shape& x = inputs[0].shape;
  require_shape(node, inputs, 1, x, "the shape of x");
  for (size_t i = 2; i < count; ++i) {
    require(broadcast_shape(node, inputs[i].shape, x) == x, node,
            "operand " + std::to_string(i) + " is " + to_string(inputs[i].shape) +
                ", must broadcast to x " + to_string(x));
  }
  if (!row.parameter.empty()) {
    const double value = double_attribute(node, row.parameter, 1);
    const bool zero_allowed = row.loss == PointwiseLoss::kSmoothL1;  // then it is l1_loss
    require(value > 0 || (zero_allowed && value == 0), node,
            "attribute '" + std::string(row.parameter) + "' is " + std::to_string(value) +
                ", must be " + (zero_allowed ? "at least 0" : "above 0"));
  }
  bool_attribute(node, "log_target", false);  // its type is checked here
  require(reduction_of(node, row) != Reduction::kBatchMean || !x.empty(), node,
          "operand 0 is a scalar, reduction 'batchmean' needs a first extent");
}

std::vector<TensorType> infer_loss(const Node& node, std::span<const TensorType> inputs) {
  const LossRow& row = row_of(node.op);
  require_loss_operands(node, row, inputs, inputs.size());
  return {{loss_shape(reduction_of(node, row), inputs[0].shape)}};
}

// Backward operands: those of the loss, then dloss. Attribute `operand`: 0 gives dx, 1 dtarget.
void loss_vjp(GradientBuilder& builder, const Node& node) {
  for (size_t i = 2; i < node.inputs.size(); ++i) {
    require(
        !builder.needs_gradient(node, i), node,
        "operand " + std::to_string(i) + " needs a gradient, but the weights of a loss have none",
        "make it an input or a buffer");
  }
  std::vector<std::string> operands = node.inputs;
  operands.push_back(builder.output_gradient(node));
  for (int operand = 0; operand < 2; ++operand) {
    if (!builder.needs_gradient(node, static_cast<size_t>(operand))) continue;
    Attributes attributes = node.attributes;
    attributes["operand"] = int64_t{operand};
    builder.add_node(node, row_of(node.op).backward_name, operands, std::move(attributes),
                     {operand});
  }
}

template <typename T>
struct Call {
  PointwiseLossArgs<T> args;
  std::vector<T> weight, pos_weight;  // repeated to x's shape
};
template <typename T>
void fill_call(const OpCall& call, const LossRow& row, size_t operands, Call<T>& filled) {
  filled.args = {row.loss, call.inputs[0]->size(), input<T>(call, 0), input<T>(call, 1)};
  if (row.loss == PointwiseLoss::kKlDiv && bool_attribute(call.node, "log_target", false)) {
    filled.args.loss = PointwiseLoss::kKlDivLogTarget;
  }
  if (!row.parameter.empty()) {
    filled.args.parameter = static_cast<T>(double_attribute(call.node, row.parameter, 1));
  }
  const Shape& shape = input_shape(call, 0);
  if (operands > 2) {
    filled.args.weight =
        expand(call.kernels, input<T>(call, 2), input_shape(call, 2), shape, filled.weight);
  }
  if (operands > 3) {
    filled.args.pos_weight =
        expand(call.kernels, input<T>(call, 3), input_shape(call, 3), shape, filled.pos_weight);
  }
}

void run_loss(const OpCall& call) {
  const LossRow& row = row_of(call.node.op);
  const Reduction reduction = reduction_of(call.node, row);
  dispatch(call, [&]<typename T>(T*) {
    Call<T> filled;
    fill_call(call, row, call.inputs.size(), filled);
    T* loss = output<T>(call, 0);
    if (reduction == Reduction::kNone)
      return call.kernels.of<T>().pointwise_loss_terms(filled.args, loss);
    const int64_t count = filled.args.count;
    std::vector<T> terms(static_cast<size_t>(count));
    call.kernels.of<T>().pointwise_loss_terms(filled.args, terms.data());
    call.kernels.of<T>().channel_sum(terms.data(), loss, 1, 1, count, call.reduce_accumulator);
    if (reduction == Reduction::kSum) return;
    *loss /= divisor<T>(reduction, input_shape(call, 0));
    if (*loss != *loss) *loss = std::numeric_limits<T>::quiet_NaN();
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  const LossRow& row = row_of(node.op);
  const size_t dloss = inputs.size() - 1;
  require_loss_operands(node, row, inputs, dloss);
  require_shape(node, inputs, dloss, loss_shape(reduction_of(node, row), inputs[0].shape),
                "the shape of the loss");
  return {inputs[0]};
}

void run_backward(const OpCall& call) {
  const LossRow& row = row_of(call.node.op);
  const Reduction reduction = reduction_of(call.node, row);
  const size_t last = call.inputs.size() - 1;
  const auto operand = static_cast<LossOperand>(int_attribute(call.node, "operand", 0));
  dispatch(call, [&]<typename T>(T*) {
    Call<T> filled;
    fill_call(call, row, last, filled);
    const T* dloss = input<T>(call, last);
    if (reduction == Reduction::kNone) {
      return call.kernels.of<T>().pointwise_loss_backward(filled.args, operand, dloss, 1,
                                                          output<T>(call, 0));
    }
    const T factor = *dloss / divisor<T>(reduction, input_shape(call, 0));
    call.kernels.of<T>().pointwise_loss_backward(filled.args, operand, &factor, 0,
                                                 output<T>(call, 0));
  });
}

}  // namespace

std::vector<OpDef> pointwise_loss_ops() {
  std::vector<OpDef> rows;
  for (const LossRow& row : kLosses) {
    std::vector<std::string_view> attributes = {"reduction"};
    if (!row.parameter.empty()) attributes.push_back(row.parameter);
    if (row.loss == PointwiseLoss::kKlDiv) attributes.push_back("log_target");
    std::vector<std::string_view> backward_attributes = attributes;
    backward_attributes.push_back("operand");
    rows.push_back({.name = row.name,
                    .help = row.help,
                    .source = row.source,
                    .cast_class = CastClass::kFp32,
                    .min_inputs = 2,
                    .max_inputs = row.max_inputs,
                    .attributes = attributes,
                    .infer = infer_loss,
                    .vjp = loss_vjp,
                    .run = run_loss,
                    .foreign_names = row.foreign_names,
                    .meaning = {.is_loss = true}});
    rows.push_back(
        {.name = row.backward_name,
         .help = "derivative of the term times dloss (divided by the count for a mean), for x "
                 "(operand 0) or the target (operand 1); operands of the loss, dloss",
         .source = "chain rule",
         .cast_class = CastClass::kFp32,
         .min_inputs = 3,
         .max_inputs = row.max_inputs + 1,
         .attributes = backward_attributes,
         .infer = infer_backward,
         .run = run_backward});
  }
  return rows;
}

}  // namespace lockstep
