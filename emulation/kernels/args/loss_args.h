// The arguments and formulas of the losses.
#pragma once

#include <cstdint>

#include "emulation/accumulator/accumulator.h"

namespace lockstep {

// How the losses of single rows or elements are combined.
enum class LossReduction : uint8_t { kMean, kSum, kNone };

// Cross entropy of x (N,C,S) against class numbers (N,S); a row is one (n, s) over its C classes.
//   lse    = log sum over c of exp(x[c] - max)
//   nll    = w[t] (lse + (max - x[t]))
//   smooth = sum over c of w[c] (lse + (max - x[c]))                      w: class weights or 1
//   row    = (1 - label_smoothing) nll + label_smoothing / C smooth,      0 where t == ignore_index
//   loss   = sum of rows / (sum of w[t] over rows not ignored)            kMean: NaN where none is
//   dx[c]  = (softmax(x)[c] k - label_smoothing / C w[c] - (1 - label_smoothing) w[t] [c == t]) g,
//            k = (1 - label_smoothing) w[t] + label_smoothing / C sum w,  g = dloss / divisor
// With `log_probabilities`, PyTorch's parts: log p[c] = (x[c] - max) - lse and its gradient
//   dlog p[c] = -(label_smoothing / C w[c] + (1 - label_smoothing) w[t] [c == t]) g
// are rounded to this format, nearest even (both terms of the latter and their sum);
//   nll = -w[t] log p[t],  smooth = -sum over c of w[c] log p[c],
//   dx[c] = dlog p[c] - exp(log p[c]) (sum over classes of dlog p).
// Requires: every target is ignore_index or in [0, C) (checked by the caller).
template <typename T>
struct CrossEntropyArgs {
  int64_t batch, classes, spatial = 1;
  const T* x = nullptr;
  const int32_t* target = nullptr;
  const T* class_weight = nullptr;  // (C), or null: all 1
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  LossReduction reduction = LossReduction::kMean;
  const T* dloss = nullptr;  // backward: a scalar; kNone: (N,S)
  T* out = nullptr;          // the loss, a scalar or (N,S); backward: dx (N,C,S)
  const Accumulator* accumulator = nullptr;
  const Format* log_probabilities = nullptr;  // null: not rounded
};

// Losses that are sums of one term per element; the terms are in scalar/elements/pointwise_loss.h.
enum class PointwiseLoss : uint8_t {
  kMse,
  kL1,
  kSmoothL1,
  kHuber,
  kKlDiv,
  kKlDivLogTarget,
  kBceWithLogits,
};

template <typename T>
struct PointwiseLossArgs {
  PointwiseLoss loss;
  int64_t count;
  const T *x, *target;
  T parameter = 1;
  const T *weight = nullptr, *pos_weight = nullptr;  // of bce_with_logits: (count), or null
};

enum class LossOperand : uint8_t { kX, kTarget };

}  // namespace lockstep
