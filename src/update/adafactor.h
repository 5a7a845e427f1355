// Adafactor: the average of squared gradients of a matrix is kept as one number for each row and
// each column. Source: Shazeer & Stern 2018, arXiv:1804.04235, as two libraries have it.
#pragma once

#include "src/update/tensor_rule.h"

namespace lockstep {

// torch.optim.Adafactor. Of matrices (the last two axes; more axes are stacks of them):
//   R = lerp(R, row means of g^2, t^beta2_decay)    C: the same of columns
//   V = R C / max(mean of R, eps1)                  of vectors: V = lerp(V, g^2, t^beta2_decay)
//   u = g / sqrt(max(V, eps1^2))                    w *= 1 - lr weight_decay
//   w -= max(eps2, rms(w)) min(lr, 1 / sqrt(t)) u / max(1, rms(u) / d)
// States: of matrices R and C, of vectors V.
template <typename T>
void adafactor_step(const TensorStep<T>& step);

// transformers.Adafactor: eps1 is added to g^2, and nothing has a lower limit but rms(w). The decay
// is by the whole step size; with beta1, u is averaged last. lr: given, or relative_step.
// States: R and C or V, then the average.
template <typename T>
void transformers_adafactor_step(const TensorStep<T>& step);

}  // namespace lockstep
