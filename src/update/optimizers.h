// Which optimizers are there, and what does one step of them need?
// One row per optimizer: its numbers, its states and its update rule. Knows one parameter's arrays;
// which gradients are skipped or unscaled is decided by the lane.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "emulation/kernels/optimizer_args.h"
#include "src/update/hyper_parameters.h"
#include "src/update/optimizer_spec.h"

namespace lockstep {

struct OptimizerState {
  std::string_view name;
  double initial = 0;
};

struct Optimizer {
  std::string_view name, help, source;
  std::span<const HyperParameter> parameters;
  // The state tensors a parameter has (none, e.g., for SGD without momentum).
  std::vector<OptimizerState> (*states)(const HyperNumbers&);
  // Which combination of numbers makes no sense, "" if none; ranges are checked already.
  std::string_view (*conflict)(const HyperNumbers&);
  void (*step_f32)(const HyperNumbers&, double lr, const OptimizerArrays<float>&, UpdateStats*);
  void (*step_f64)(const HyperNumbers&, double lr, const OptimizerArrays<double>&, UpdateStats*);
};

std::span<const Optimizer> optimizers();
const Optimizer& find_optimizer(std::string_view name);  // Throws: InputError, did-you-mean

// Throws: InputError: unknown optimizer, unknown numbers, every value out of its range.
void check_optimizer_spec(const OptimizerSpec& spec);

// All numbers of the spec's optimizer.
HyperNumbers numbers_of(const OptimizerSpec& spec);
int state_count(const OptimizerSpec& spec);

// One step with the learning rate of this step.
template <typename T>
void optimizer_step(const Optimizer& optimizer, const HyperNumbers& numbers, double lr,
                    const OptimizerArrays<T>& arrays, UpdateStats* stats);

// The factor GradScaler.unscale_ multiplies gradients by: FP32 of the double reciprocal.
// Infinite once scale <= 2^-128.
float unscale_factor(double scale);

}  // namespace lockstep
