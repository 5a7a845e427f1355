// Which optimizers are there, and what does one step of them need?
// One row per optimizer: its states and its kernel. Knows one parameter's arrays; which gradients
// are skipped or unscaled is decided by the lane.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "emulation/kernel_set.h"
#include "src/train/lockstep.h"

namespace lockstep {

inline constexpr int kMaxOptimizerStates = 2;

// One parameter's arrays, all of `count` elements.
template <typename T>
struct OptimizerCall {
  int64_t count = 0;
  T* weight = nullptr;      // the master weights where there are any
  const T* grad = nullptr;  // unscaled
  std::array<T*, kMaxOptimizerStates> states{};
  T* update = nullptr;  // receives dw before the weight's rounding
  int64_t step = 1;     // 1-based: skipped steps do not count
  OptimizerFormats formats;
  OptimizerMeasurements measured = {};
};

struct Optimizer {
  std::string_view name, help, source;
  // The state tensors a parameter has under this spec (none, e.g., for SGD without momentum).
  std::vector<std::string_view> (*state_names)(const OptimizerSpec&);
  void (*step_f32)(const Kernels<float>&, const OptimizerSpec&, const OptimizerCall<float>&,
                   UpdateStats*);
  void (*step_f64)(const Kernels<double>&, const OptimizerSpec&, const OptimizerCall<double>&,
                   UpdateStats*);
};

std::span<const Optimizer> optimizers();
const Optimizer& find_optimizer(std::string_view name);  // Throws: InputError, did-you-mean

// Throws: InputError with every value out of its range.
void check_optimizer_spec(const OptimizerSpec& spec);

template <typename T>
void optimizer_step(const Optimizer& optimizer, const Kernels<T>& kernels,
                    const OptimizerSpec& spec, const OptimizerCall<T>& call, UpdateStats* stats);

// The factor GradScaler.unscale_ multiplies gradients by: FP32 of the double reciprocal.
// Infinite once scale <= 2^-128.
float unscale_factor(float scale);

}  // namespace lockstep
