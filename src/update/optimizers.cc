// The table of optimizers: names, numbers, states and argument checks, as in torch.optim. The
// arithmetic is in the kernels.
#include "src/update/optimizers.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/core/find_row.h"
#include "src/update/adafactor.h"
#include "src/update/muon.h"

namespace lockstep {
namespace {

using Range = HyperParameter::Range;

constexpr std::string_view kLrHelp = "learning rate; a schedule multiplies it";
constexpr std::string_view kDecoupledHelp =
    "1: weight decay shrinks the weight before the step; 0: it is added to the gradient";
constexpr std::string_view kEpsHelp = "added to the root in the denominator";

constexpr HyperParameter kWeightDecay = {
    .name = "weight_decay", .range = Range::kNonNegative, .help = "weight decay"};
constexpr HyperParameter kCoupled = {
    .name = "decoupled_weight_decay", .range = Range::kFlag, .help = kDecoupledHelp};
constexpr HyperParameter kDecoupled = {
    .name = "decoupled_weight_decay", .initial = 1, .range = Range::kFlag, .help = kDecoupledHelp};
constexpr HyperParameter kSgdParameters[] = {
    {.name = "lr", .initial = 0.05, .range = Range::kNonNegative, .help = kLrHelp},
    {.name = "momentum",
     .initial = 0.9,
     .range = Range::kBelowOne,
     .help = "factor of the old momentum buffer; 0: no buffer"},
    {.name = "dampening",
     .range = Range::kUpToOne,
     .help = "1 - dampening multiplies the gradients after the first"},
    {.name = "nesterov", .range = Range::kFlag, .help = "look ahead along the momentum"},
    kWeightDecay,
    kCoupled,
};
constexpr HyperParameter kAdamParameters[] = {
    {.name = "lr", .initial = 1e-3, .range = Range::kNonNegative, .help = kLrHelp},
    {.name = "beta1",
     .initial = 0.9,
     .range = Range::kBelowOne,
     .help = "decay of the average of gradients"},
    {.name = "beta2",
     .initial = 0.999,
     .range = Range::kBelowOne,
     .help = "decay of the average of squares"},
    {.name = "eps", .initial = 1e-8, .range = Range::kNonNegative, .help = kEpsHelp},
    kWeightDecay,
    kCoupled,
    {.name = "amsgrad",
     .range = Range::kFlag,
     .help = "divide by the largest average of squares so far"},
};
constexpr HyperParameter kAdamwParameters[] = {
    kAdamParameters[0],
    kAdamParameters[1],
    kAdamParameters[2],
    kAdamParameters[3],
    {.name = "weight_decay",
     .initial = 1e-2,
     .range = Range::kNonNegative,
     .help = kWeightDecay.help},
    kDecoupled,
    kAdamParameters[6],
};
constexpr HyperParameter kAdagradParameters[] = {
    {.name = "lr", .initial = 1e-2, .range = Range::kNonNegative, .help = kLrHelp},
    {.name = "lr_decay", .range = Range::kNonNegative, .help = "lr / (1 + (step - 1) lr_decay)"},
    {.name = "eps", .initial = 1e-10, .range = Range::kNonNegative, .help = kEpsHelp},
    {.name = "initial_accumulator_value",
     .range = Range::kNonNegative,
     .help = "initial sum of squares"},
    kWeightDecay,
    kCoupled,
};
constexpr HyperParameter kRmspropParameters[] = {
    {.name = "lr", .initial = 1e-2, .range = Range::kNonNegative, .help = kLrHelp},
    {.name = "alpha",
     .initial = 0.99,
     .range = Range::kBelowOne,
     .help = "decay of the average of squares"},
    {.name = "eps", .initial = 1e-8, .range = Range::kNonNegative, .help = kEpsHelp},
    {.name = "momentum",
     .range = Range::kBelowOne,
     .help = "factor of the old momentum buffer; 0: no buffer"},
    {.name = "centered",
     .range = Range::kFlag,
     .help = "divide by the standard deviation of the gradient"},
    kWeightDecay,
    kCoupled,
};
constexpr HyperParameter kLionParameters[] = {
    {.name = "lr", .initial = 1e-4, .range = Range::kNonNegative, .help = kLrHelp},
    {.name = "beta1",
     .initial = 0.9,
     .range = Range::kBelowOne,
     .help = "weight of the average in the signed step"},
    {.name = "beta2",
     .initial = 0.99,
     .range = Range::kBelowOne,
     .help = "decay of the average of gradients"},
    kWeightDecay,
    kDecoupled,
};

constexpr HyperParameter kMuonParameters[] = {
    {.name = "lr", .initial = 0.02, .range = Range::kNonNegative, .help = kLrHelp},
    {.name = "momentum",
     .initial = 0.95,
     .range = Range::kBelowOne,
     .help = "decay of the average of gradients"},
    {.name = "nesterov",
     .initial = 1,
     .range = Range::kFlag,
     .help = "look ahead along the average"},
    {.name = "weight_decay",
     .initial = 0.1,
     .range = Range::kNonNegative,
     .help = "w *= 1 - lr weight_decay before the step"},
    {.name = "match_rms_adamw",
     .range = Range::kFlag,
     .help = "0: steps of lr sqrt(max(1, rows / columns)); 1: of 0.2 lr sqrt(max(rows, columns))"},
    {.name = "ns_steps",
     .initial = 5,
     .range = Range::kBelowHundred,
     .help = "Newton-Schulz steps"},
    {.name = "ns_a", .initial = 3.4445, .range = Range::kFinite, .help = "X = a X + ..."},
    {.name = "ns_b", .initial = -4.775, .range = Range::kFinite, .help = "(b G + ..."},
    {.name = "ns_c", .initial = 2.0315, .range = Range::kFinite, .help = "c G G) X, G = X X^T"},
    {.name = "ns_bf16",
     .initial = 1,
     .range = Range::kFlag,
     .help = "1: Newton-Schulz in bf16, in every lane, as PyTorch does; 0: in fp32"},
    {.name = "eps",
     .initial = 1e-7,
     .range = Range::kNonNegative,
     .help = "least norm that the direction is divided by"},
};

constexpr StateRow kSgdStates[] = {{.name = "momentum_buffer", .only_with = "momentum"}};
constexpr StateRow kAdamStates[] = {
    {.name = "exp_avg"},
    {.name = "exp_avg_sq", .divides = true},
    {.name = "max_exp_avg_sq", .only_with = "amsgrad", .divides = true}};
constexpr StateRow kAdagradStates[] = {
    {.name = "sum", .initial = "initial_accumulator_value", .divides = true}};
constexpr StateRow kRmspropStates[] = {{.name = "square_avg", .divides = true},
                                       {.name = "grad_avg", .only_with = "centered"},
                                       {.name = "momentum_buffer", .only_with = "momentum"}};
constexpr HyperParameter kAdafactorParameters[] = {
    {.name = "lr",
     .initial = 1e-2,
     .range = Range::kNonNegative,
     .help = "largest relative step size, and the factor of weight decay"},
    {.name = "beta2_decay",
     .initial = -0.8,
     .range = Range::kFinite,
     .help = "the averages take t^beta2_decay of the new squares"},
    {.name = "eps1",
     .initial = -1,
     .range = Range::kFinite,
     .help = "least root of an average; below 0: the machine epsilon of the weight's format"},
    {.name = "eps2",
     .initial = 1e-3,
     .range = Range::kNonNegative,
     .help = "least root mean square of a weight"},
    {.name = "d",
     .initial = 1,
     .range = Range::kPositive,
     .help = "largest root mean square of a direction"},
    kWeightDecay,
};
constexpr HyperParameter kTransformersAdafactorParameters[] = {
    {.name = "lr",
     .initial = 1e-3,
     .range = Range::kNonNegative,
     .help = "step size without relative_step; a schedule multiplies it"},
    {.name = "decay_rate",
     .initial = -0.8,
     .range = Range::kFinite,
     .help = "the averages take t^decay_rate of the new squares"},
    {.name = "eps1",
     .initial = 1e-30,
     .range = Range::kNonNegative,
     .help = "added to squared gradients"},
    {.name = "eps2",
     .initial = 1e-3,
     .range = Range::kNonNegative,
     .help = "least root mean square of a weight"},
    {.name = "clip_threshold",
     .initial = 1,
     .range = Range::kPositive,
     .help = "largest root mean square of a direction"},
    {.name = "beta1",
     .range = Range::kBelowOne,
     .help = "decay of the average of updates; 0: none"},
    kWeightDecay,
    {.name = "scale_parameter",
     .initial = 1,
     .range = Range::kFlag,
     .help = "the weight's root mean square multiplies the step size"},
    {.name = "relative_step",
     .initial = 1,
     .range = Range::kFlag,
     .help = "step size min(0.01, 1 / sqrt(t)) in place of lr"},
    {.name = "warmup_init", .range = Range::kFlag, .help = "with relative_step: at most 1e-6 t"},
};

constexpr StateRow kAdafactorStates[] = {
    {.name = "row_var",
     .divides = true,
     .extent = StateExtent::kRows,
     .of = StateRow::Of::kMatrices},
    {.name = "col_var",
     .divides = true,
     .extent = StateExtent::kColumns,
     .of = StateRow::Of::kMatrices},
    {.name = "variance", .divides = true, .of = StateRow::Of::kVectors}};
constexpr StateRow kTransformersAdafactorStates[] = {
    {.name = "exp_avg_sq_row",
     .divides = true,
     .extent = StateExtent::kRows,
     .of = StateRow::Of::kMatrices},
    {.name = "exp_avg_sq_col",
     .divides = true,
     .extent = StateExtent::kColumns,
     .of = StateRow::Of::kMatrices},
    {.name = "exp_avg_sq", .divides = true, .of = StateRow::Of::kVectors},
    {.name = "exp_avg", .only_with = "beta1"}};
constexpr StateRow kMuonStates[] = {{.name = "momentum_buffer"}};
constexpr StateRow kLionStates[] = {{.name = "exp_avg"}};

// Adam's first average moves by 1 - beta1 of a difference; no format rounds that factor to 1.
constexpr std::string_view kAdamFactors[] = {"beta2"};
constexpr std::string_view kRmspropFactors[] = {"alpha"};
constexpr std::string_view kLionFactors[] = {"beta1", "beta2"};

bool always(const HyperNumbers&) {
  return true;
}
bool with_momentum(const HyperNumbers& n) {
  return n["momentum"] != 0;
}

std::string_view sgd_conflict(const HyperNumbers& n) {
  if (n["nesterov"] == 0 || (n["momentum"] > 0 && n["dampening"] == 0)) return "";
  return "nesterov 1: momentum > 0 and dampening = 0 required";
}

template <typename Rule>
Rule common(const HyperNumbers& n, double lr) {
  Rule rule;
  rule.lr = lr;
  rule.weight_decay = n["weight_decay"];
  rule.decoupled_weight_decay = n["decoupled_weight_decay"] != 0;
  return rule;
}
UpdateRule sgd_rule(const HyperNumbers& n, double lr) {
  SgdRule rule = common<SgdRule>(n, lr);
  rule.momentum = n["momentum"];
  rule.dampening = n["dampening"];
  rule.nesterov = n["nesterov"] != 0;
  return rule;
}
UpdateRule adam_rule(const HyperNumbers& n, double lr) {
  AdamRule rule = common<AdamRule>(n, lr);
  rule.beta1 = n["beta1"];
  rule.beta2 = n["beta2"];
  rule.eps = n["eps"];
  rule.amsgrad = n["amsgrad"] != 0;
  return rule;
}
UpdateRule adagrad_rule(const HyperNumbers& n, double lr) {
  AdagradRule rule = common<AdagradRule>(n, lr);
  rule.lr_decay = n["lr_decay"];
  rule.eps = n["eps"];
  return rule;
}
UpdateRule rmsprop_rule(const HyperNumbers& n, double lr) {
  RmspropRule rule = common<RmspropRule>(n, lr);
  rule.alpha = n["alpha"];
  rule.eps = n["eps"];
  rule.momentum = n["momentum"];
  rule.centered = n["centered"] != 0;
  return rule;
}
UpdateRule lion_rule(const HyperNumbers& n, double lr) {
  LionRule rule = common<LionRule>(n, lr);
  rule.beta1 = n["beta1"];
  rule.beta2 = n["beta2"];
  return rule;
}
const Optimizer kOptimizers[] = {
    {.name = "sgd",
     .help = "buf = momentum buf + (1 - dampening) g, from buf = g; w -= lr buf",
     .source = "torch.optim.SGD",
     .parameters = kSgdParameters,
     .all_states = kSgdStates,
     .rule = sgd_rule,
     .conflict = sgd_conflict,
     .captured_class = "SGD",
     .counts_steps = false,
     .adds_lr = always,
     .is_linear = true},
    {.name = "adam",
     .help = "w -= lr m^ / (sqrt(v^) + eps) with bias-corrected moments",
     .source = "torch.optim.Adam; Kingma & Ba 2015, algorithm 1; amsgrad: Reddi et al. 2018",
     .parameters = kAdamParameters,
     .all_states = kAdamStates,
     .rule = adam_rule,
     .captured_class = "Adam",
     .average_factors = kAdamFactors},
    {.name = "adamw",
     .help = "adam with decoupled weight decay: w *= 1 - lr weight_decay before the step",
     .source = "torch.optim.AdamW; Loshchilov & Hutter 2019, algorithm 2",
     .parameters = kAdamwParameters,
     .all_states = kAdamStates,
     .rule = adam_rule,
     .captured_class = "AdamW",
     .average_factors = kAdamFactors},
    {.name = "adagrad",
     .help = "sum += g^2; w -= lr g / (sqrt(sum) + eps)",
     .source = "torch.optim.Adagrad; Duchi et al. 2011",
     .parameters = kAdagradParameters,
     .all_states = kAdagradStates,
     .rule = adagrad_rule,
     .captured_class = "Adagrad"},
    {.name = "rmsprop",
     .help = "v = alpha v + (1 - alpha) g^2; w -= lr g / (sqrt(v) + eps), or by its momentum",
     .source = "torch.optim.RMSprop; Tieleman & Hinton 2012, lecture 6.5",
     .parameters = kRmspropParameters,
     .all_states = kRmspropStates,
     .rule = rmsprop_rule,
     .captured_class = "RMSprop",
     .adds_lr = with_momentum,
     .average_factors = kRmspropFactors},
    {.name = "lion",
     .help = "w -= lr sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g",
     .source = "Chen et al. 2023, arXiv:2302.06675, algorithm 2",
     .parameters = kLionParameters,
     .all_states = kLionStates,
     .rule = lion_rule,
     .adds_lr = always,
     .average_factors = kLionFactors},
    {.name = "muon",
     .help = "m += (1 - momentum)(g - m); w -= lr O, O about the orthogonal matrix nearest to m; "
             "matrices alone",
     .source = "torch.optim.Muon; Jordan et al. 2024",
     .parameters = kMuonParameters,
     .all_states = kMuonStates,
     .tensor_rule = {muon_step<float>, muon_step<double>},
     .matrices_alone = true,
     .captured_class = "Muon",
     .counts_steps = false,
     .narrow_sums = "ns_bf16",
     .adds_lr = always},
    {.name = "adafactor",
     .help =
         "w -= lr_t g / sqrt(v), v of matrices from averages of rows and columns of g^2; lr_t by "
         "the size of w",
     .source = "torch.optim.Adafactor; Shazeer & Stern 2018, arXiv:1804.04235",
     .parameters = kAdafactorParameters,
     .all_states = kAdafactorStates,
     .tensor_rule = {adafactor_step<float>, adafactor_step<double>},
     .captured_class = "Adafactor",
     .chooses_step = true},
    {.name = "adafactor-transformers",
     .help =
         "adafactor as in transformers: eps1 is added to g^2, lr instead of relative steps, beta1",
     .source = "transformers.Adafactor 5.23; Shazeer & Stern 2018, arXiv:1804.04235",
     .parameters = kTransformersAdafactorParameters,
     .all_states = kTransformersAdafactorStates,
     .tensor_rule = {transformers_adafactor_step<float>, transformers_adafactor_step<double>},
     .captured_class = "Adafactor",
     .captured_package = "transformers",
     .chooses_step = true},
};

UpdateRule recorded_rule(const HyperNumbers&, double) {
  SgdRule rule;
  rule.lr = -1;  // w -= -1 update
  return rule;
}
const Optimizer kRecordedUpdates = {.name = "recorded",
                                    .help = "w += the update that PyTorch made in that step",
                                    .source = "the capture",
                                    .parameters = {},
                                    .all_states = {},
                                    .rule = recorded_rule};

}  // namespace

Shape OptimizerState::shape_for(Shape weight) const {
  if (weight.size() < 2) return weight;
  if (extent == StateExtent::kRows) weight.back() = 1;
  if (extent == StateExtent::kColumns) weight[weight.size() - 2] = 1;
  return weight;
}

std::vector<OptimizerState> Optimizer::states(const HyperNumbers& numbers,
                                              const Shape& shape) const {
  const StateRow::Of other = shape.size() >= 2 ? StateRow::Of::kVectors : StateRow::Of::kMatrices;
  std::vector<OptimizerState> found;
  for (const StateRow& row : all_states) {
    if (row.of == other) continue;
    if (!row.only_with.empty() && numbers[row.only_with] == 0) continue;
    const double initial = row.initial.empty() ? 0 : numbers[row.initial];
    found.push_back({row.name, initial, row.divides, row.extent});
  }
  return found;
}

std::span<const Optimizer> optimizers() {
  return kOptimizers;
}

const Optimizer& recorded_updates() {
  return kRecordedUpdates;
}

const Optimizer& find_optimizer(std::string_view name) {
  if (name == kRecordedUpdates.name) return kRecordedUpdates;
  return find_row("optimizer", name, kOptimizers);
}

void check_optimizer_spec(const OptimizerSpec& spec) {
  const Optimizer& optimizer = find_optimizer(spec.name);
  ProblemList problems("optimizer '" + spec.name + "'");
  check_hyper_values(spec, optimizer.parameters, problems);
  problems.throw_if_any();
  if (optimizer.conflict != nullptr) {
    const std::string_view conflict = optimizer.conflict(numbers_of(spec));
    if (!conflict.empty()) problems.add(std::string(conflict));
  }
  problems.throw_if_any();
}

HyperNumbers numbers_of(const OptimizerSpec& spec) {
  return {find_optimizer(spec.name).parameters, spec.values};
}

int state_count(const OptimizerSpec& spec) {
  return static_cast<int>(find_optimizer(spec.name).states(numbers_of(spec), {1, 1}).size());
}

template <typename T>
void optimizer_step(const KernelSet& kernels, const Optimizer& optimizer,
                    const HyperNumbers& numbers, double lr, const OptimizerArrays<T>& arrays,
                    UpdateStats* stats) {
  if (optimizer.tensor_rule) {
    return optimizer.tensor_rule.run(TensorStep<T>{kernels, numbers, lr, arrays, stats});
  }
  kernels.of<T>().optimizer(optimizer.rule(numbers, lr), arrays, stats);
}
template void optimizer_step(const KernelSet&, const Optimizer&, const HyperNumbers&, double,
                             const OptimizerArrays<float>&, UpdateStats*);
template void optimizer_step(const KernelSet&, const Optimizer&, const HyperNumbers&, double,
                             const OptimizerArrays<double>&, UpdateStats*);

float unscale_factor(double scale) {
  return static_cast<float>(1.0 / scale);
}

}  // namespace lockstep
