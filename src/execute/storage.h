// Rounds values to the format that they are stored in.
// Weights, inputs, buffers and loss seeds are rounded once, when they are stored or bound.
#pragma once

#include "emulation/kernels/quantize.h"
#include "src/core/tensor.h"
#include "src/execute/rounding_keys.h"

namespace lockstep {

// to = round(from), with a change of container if they differ; integers are copied. `stats` may be
// null; integers do not change it. Requires: as many elements in both.
void store(const KernelSet& kernels, const Tensor& from, Tensor& to, const QuantizeSpec& spec,
           TensorStats* stats = nullptr);

// Rounding to a format in storage. A policy's rounding applies to formats narrower than FP32; FP32
// rounds to nearest. `site`: a site id.
QuantizeSpec storage_rounding(const Format* format, Rounding of_policy, const ExecutionKey& key,
                              uint32_t site);

// Whether no value of the container changes when it is rounded to the format.
inline bool changes_nothing(const Format& format, Container container) {
  return format.is_fp64() || (format.is_fp32() && container == Container::kF32);
}

// The number in a tensor of one element.
double first_value(const Tensor& tensor);

}  // namespace lockstep
