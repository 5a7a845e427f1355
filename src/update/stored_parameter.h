// What does an optimizer keep of one parameter, and what does it step on?
// The tensors that stay between steps, for training and for the gate that repeats PyTorch's steps.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/kernels/optimizer_args.h"
#include "src/core/tensor.h"
#include "src/update/optimizers.h"

namespace lockstep {

struct StoredParameter {
  Tensor weight, master;       // master: empty without master weights
  std::vector<Tensor> states;  // as Optimizer::states lists them
  Tensor compensation;         // Kahan's, empty without

  Tensor& updated() { return master.empty() ? weight : master; }
  const Tensor& updated() const { return master.empty() ? weight : master; }
};

// A state tensor before the first step.
Tensor state_before_first_step(const OptimizerState& state, const Shape& shape,
                               Container container);

// The arrays of one optimizer step, the `step`-th (from 1). Formats, and what is measured, are left
// to the caller. Requires: `gradient` in the container of T, as are the parameter's tensors.
template <typename T>
OptimizerArrays<T> arrays_of(StoredParameter& parameter, const Tensor& gradient, int64_t step);

}  // namespace lockstep
