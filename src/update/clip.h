// torch.nn.utils.clip_grad_norm_ and clip_grad_value_ over the unscaled gradients of one lane.
#pragma once

#include <span>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/kernels/kernel_set.h"
#include "src/core/tensor.h"

namespace lockstep {

struct ClippedGradient {
  Tensor* values;
  const Format* format;  // of the values, before and after
};

// Multiplies every gradient by min(max_norm / (total + 1e-6), 1), always, as torch does.
//   norm of a tensor   (sum |x|^norm_type)^(1/norm_type) (FP32 in the order of reduction.h, FP64 in
//                      the truth lane), or the largest |x| for infinity; rounded to the tensor's
//                      format
//   total              the norm of the norms, in their format; FP32 if the formats differ
//   coefficient        each operation rounded to total's format
// Requires: norm_type > 0. Returns: total.
double clip_by_norm(const KernelSet& kernels, const std::vector<ClippedGradient>& gradients,
                    double max_norm, double norm_type = 2);

// The norm of the numbers, NaN if one is NaN. Requires: norm_type > 0.
double norm_of_norms(const KernelSet& kernels, std::span<const double> norms, double norm_type);

// Clips every element to [-max_value, max_value] (rounded to the format); NaN stays NaN.
void clip_by_value(const KernelSet& kernels, const std::vector<ClippedGradient>& gradients,
                   double max_value);

}  // namespace lockstep
