// The tensors of one parameter that are kept between optimizer steps.
// For training, and for the gate that repeats PyTorch's steps.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/kernels/args/optimizer_args.h"
#include "src/core/tensor.h"
#include "src/update/optimizers.h"

namespace lockstep {

struct StoredParameter {
  Tensor weight, master;       // master: empty without master weights
  std::vector<Tensor> states;  // as Optimizer::states lists them
  Tensor compensation;         // Kahan's; empty without Kahan updates

  Tensor& updated() { return master.empty() ? weight : master; }
  const Tensor& updated() const { return master.empty() ? weight : master; }
};

// A state tensor of a weight of this shape, before the first step.
Tensor state_before_first_step(const OptimizerState& state, const Shape& shape,
                               Container container);

// The arrays of one optimizer step, the `step`-th (from 1). The caller sets formats and
// measurements.
// Requires: `gradient` in the container of T, like the parameter's tensors.
template <typename T>
OptimizerArrays<T> arrays_of(StoredParameter& parameter, const Tensor& gradient, int64_t step);

}  // namespace lockstep
