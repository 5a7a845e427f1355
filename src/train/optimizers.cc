// The table of optimizers. The arithmetic is in the kernels; here stand names, states and argument
// checks, as torch.optim has them.
#include "src/train/optimizers.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "src/core/error.h"

namespace lockstep {
namespace {

using Names = std::vector<std::string_view>;

Names sgd_states(const OptimizerSpec& spec) {
  return spec.momentum == 0 ? Names{} : Names{"momentum_buffer"};
}
Names adam_states(const OptimizerSpec&) {
  return {"exp_avg", "exp_avg_sq"};
}

template <typename T>
void run_sgd(const Kernels<T>& kernels, const OptimizerSpec& spec, const OptimizerCall<T>& call,
             UpdateStats* stats) {
  kernels.sgd({.count = call.count,
               .weight = call.weight,
               .grad = call.grad,
               .momentum_buffer = call.states[0],
               .update = call.update,
               .lr = spec.lr,
               .momentum = spec.momentum,
               .weight_decay = spec.weight_decay,
               .first_step = call.step == 1,
               .formats = call.formats,
               .measured = call.measured},
              stats);
}

template <typename T, bool kDecoupled>
void run_adam(const Kernels<T>& kernels, const OptimizerSpec& spec, const OptimizerCall<T>& call,
              UpdateStats* stats) {
  kernels.adam({.count = call.count,
                .weight = call.weight,
                .grad = call.grad,
                .exp_avg = call.states[0],
                .exp_avg_sq = call.states[1],
                .update = call.update,
                .lr = spec.lr,
                .beta1 = spec.beta1,
                .beta2 = spec.beta2,
                .eps = spec.eps,
                .weight_decay = spec.weight_decay,
                .decoupled_weight_decay = kDecoupled,
                .step = call.step,
                .formats = call.formats,
                .measured = call.measured},
               stats);
}

const Optimizer kOptimizers[] = {
    {"sgd", "buf = momentum buf + g, w -= lr buf; weight decay is added to g", "torch.optim.SGD",
     sgd_states, run_sgd<float>, run_sgd<double>},
    {"adam",
     "w -= lr m^ / (sqrt(v^) + eps) with bias-corrected moments; weight decay is added to g",
     "torch.optim.Adam; Kingma & Ba 2015, algorithm 1", adam_states, run_adam<float, false>,
     run_adam<double, false>},
    {"adamw", "adam with decoupled weight decay: w *= 1 - lr weight_decay before the step",
     "torch.optim.AdamW; Loshchilov & Hutter 2019, algorithm 2", adam_states, run_adam<float, true>,
     run_adam<double, true>},
};

}  // namespace

std::span<const Optimizer> optimizers() {
  return kOptimizers;
}

const Optimizer& find_optimizer(std::string_view name) {
  std::vector<std::string> names;
  for (const Optimizer& optimizer : kOptimizers) {
    if (optimizer.name == name) return optimizer;
    names.emplace_back(optimizer.name);
  }
  throw InputError("optimizer '" + std::string(name) + "': unknown", did_you_mean(name, names));
}

void check_optimizer_spec(const OptimizerSpec& spec) {
  ProblemList problems("optimizer '" + spec.name + "'");
  const auto require = [&](bool holds, std::string_view name, double value,
                           std::string_view constraint) {
    if (!holds) problems.add(fmt::format("{} {}: {} required", name, value, constraint));
  };
  require(std::isfinite(spec.lr) && spec.lr >= 0, "lr", spec.lr, "0 <= lr < infinity");
  require(spec.momentum >= 0 && spec.momentum < 1, "momentum", spec.momentum, "0 <= momentum < 1");
  require(spec.beta1 >= 0 && spec.beta1 < 1, "beta1", spec.beta1, "0 <= beta1 < 1");
  require(spec.beta2 >= 0 && spec.beta2 < 1, "beta2", spec.beta2, "0 <= beta2 < 1");
  require(std::isfinite(spec.eps) && spec.eps >= 0, "eps", spec.eps, "0 <= eps < infinity");
  require(std::isfinite(spec.weight_decay) && spec.weight_decay >= 0, "weight_decay",
          spec.weight_decay, "0 <= weight_decay < infinity");
  problems.throw_if_any();
}

template <>
void optimizer_step(const Optimizer& optimizer, const Kernels<float>& kernels,
                    const OptimizerSpec& spec, const OptimizerCall<float>& call,
                    UpdateStats* stats) {
  optimizer.step_f32(kernels, spec, call, stats);
}
template <>
void optimizer_step(const Optimizer& optimizer, const Kernels<double>& kernels,
                    const OptimizerSpec& spec, const OptimizerCall<double>& call,
                    UpdateStats* stats) {
  optimizer.step_f64(kernels, spec, call, stats);
}

float unscale_factor(float scale) {
  return static_cast<float>(1.0 / static_cast<double>(scale));
}

}  // namespace lockstep
