// Defects for the mutation test of `lockstep check`: each replaces a few kernels of a set by wrong
// ones, small wrappers of the true ones. Knows nothing of models, lanes or checks.
#pragma once

#include <span>
#include <string_view>

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

struct Defect {
  std::string_view name;  // as in LOCKSTEP_PLANT
  std::string_view help;
  void (*plant)(KernelSet&);
};

std::span<const Defect> rounding_defects();  // casts and sums
std::span<const Defect> layer_defects();     // what layers compute, forward and backward
std::span<const Defect> step_defects();      // losses, loss scaling and optimizers

// The kernels without a defect.
const KernelSet& true_kernels();

template <typename T>
const Kernels<T>& true_kernels_of() {
  return true_kernels().of<T>();
}

// Plants in the kernels of both element types.
template <typename Plant>
void plant_in_both(KernelSet& set, const Plant& plant) {
  plant(set.f32);
  plant(set.f64);
}

// The kernels that have roundings of their own would go around a wrong gemm or a wrong cast.
template <typename T>
void use_passes(Kernels<T>& kernels) {
  kernels.rounded_gemm = nullptr;
  kernels.fill_and_quantize = nullptr;
}

}  // namespace lockstep
