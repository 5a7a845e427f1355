// Tells whether every number of a tensor is finite.
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "src/core/tensor.h"

namespace lockstep {

inline bool all_finite(const KernelSet& kernels, const Tensor& tensor) {
  return tensor.container() == Container::kF64
             ? kernels.f64.all_finite(tensor.as<double>().data(), tensor.size())
             : kernels.f32.all_finite(tensor.as<float>().data(), tensor.size());
}

}  // namespace lockstep
