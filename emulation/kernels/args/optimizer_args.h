// The arguments of one optimizer step: the arrays of one parameter, and the formats for computing
// and storing. The rules are in optimizer_rules.h, the loops in scalar/elements/optimizer.h. This
// file does not know which parameter is updated when, or with which learning rate.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>

#include "emulation/kernels/args/quantize_spec.h"
#include "emulation/stats/tensor_stats.h"
#include "emulation/stats/update_stats.h"

namespace lockstep {

inline constexpr int kMaxOptimizerStates = 3;

// What is rounded to OptimizerFormats::arithmetic. Makes no difference if that is the container's
// own format.
enum class OptimizerSteps : uint8_t {
  kElementary,  // every elementary operation and every constant
  // Every torch op rounds once, as on tensors of that format: its scalars and its inner operations
  // are FP32, a product that is added is fused with the sum, and the last op's result is the
  // weight.
  kTorch,
  // The same, but the scalars of add (alpha, or an added number) are rounded to the tensors'
  // format. torch's CPU kernel does this (seen in 2.13); its CUDA kernels keep them in FP32.
  kTorchCpu,
};

// The arithmetic is rounded to `arithmetic` (the container's own format: no extra rounding), the
// states to `state`, the weights to `weight`.
struct OptimizerFormats {
  const Format* arithmetic;
  const Format* state;
  const Format* weight;  // of the array that is updated: the master weights, if any
  Rounding rounding = Rounding::kNearestEven;  // of the weight after the update
  StochasticKey key;
  Rounding state_rounding = Rounding::kNearestEven;
  StochasticKey state_keys[kMaxOptimizerStates] = {};
  OptimizerSteps steps = OptimizerSteps::kElementary;
};

// The effect of an optimizer's roundings; null where not requested. Before: the value without the
// roundings of this step, in double, from the stored operands; after: the value kept.
// The weight's "before" is the exact sum of the weight and its rounded update.
struct OptimizerMeasurements {
  TensorStats* weight = nullptr;
  TensorStats* update = nullptr;  // of dw; needs the array `update`
  TensorStats* states[kMaxOptimizerStates] = {};
};

inline bool measures(const OptimizerMeasurements& m) {
  bool wanted = m.weight != nullptr || m.update != nullptr;
  for (const TensorStats* state : m.states) wanted |= state != nullptr;
  return wanted;
}

// Whether `format` is that of the container T itself.
template <typename T>
bool is_native(const Format& format) {
  return std::is_same_v<T, float> ? format.is_fp32() : format.is_fp64();
}

// One parameter's arrays, all of `count` elements.
//
// With `compensation` c (Kahan), the part of an update that the weight's rounding loses is kept for
// the next update; c has the weight's format:
//   y = dw - c;  w' = round(w + y);  c' = round((w' - w) - y)
// Source: Zamirai et al. 2021, "Revisiting BFloat16 Training", algorithm 3.
template <typename T>
struct OptimizerArrays {
  int64_t count = 0;
  std::span<const int64_t> shape = {};  // of the weight; for rules of whole tensors
  T* weight = nullptr;
  const T* grad = nullptr;  // unscaled
  int state_count = 0;
  std::array<T*, kMaxOptimizerStates> states{};
  T* update = nullptr;        // receives dw = w_new - w before the weight's rounding; may be null
  T* compensation = nullptr;  // null: none
  int64_t step = 1;           // 1-based
  OptimizerFormats formats;
  OptimizerMeasurements measured = {};
};

// x^n, n >= 0, by squaring: the same bits everywhere, which libm's pow does not promise.
inline double integer_power(double x, int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2, x *= x) {
    if (n % 2 == 1) result *= x;
  }
  return result;
}

}  // namespace lockstep
