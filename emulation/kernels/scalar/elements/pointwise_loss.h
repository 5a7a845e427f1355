// Losses that are sums of one term per element, and the terms' derivatives.
// The terms are not summed here. Scalar only: the compiler vectorises the cheap terms, and a loss
// is computed once per step.
//
//   mse          (x - t)^2
//   l1           |x - t|
//   smooth_l1    beta > |x - t|: (x - t)^2 / (2 beta), else |x - t| - beta / 2          p: beta
//   huber        delta >= |x - t|: (x - t)^2 / 2, else delta (|x - t| - delta / 2)      p: delta
//   kl_div       t (log t - x), 0 log 0 = 0        with the target's logarithm: exp(t) (t - x)
//   bce_with_logits   w ((1 - t) x + (1 + (v - 1) t) log(1 + exp(-x)))                  v:
//   pos_weight
// Derivatives at kinks are torch's: 0 at x == t for l1.
#pragma once

#include <cstdint>

#include "emulation/kernels/args/loss_args.h"

namespace lockstep {

template <typename T>
void pointwise_loss_terms(const PointwiseLossArgs<T>& args, T* terms);
// d = (derivative of the term) * dloss, where dloss is one number (stride 0) or one per element
// (1).
template <typename T>
void pointwise_loss_backward(const PointwiseLossArgs<T>& args, LossOperand operand, const T* dloss,
                             int64_t dloss_stride, T* d);

}  // namespace lockstep
