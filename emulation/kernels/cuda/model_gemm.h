// Products of software lanes on a device: its kernels compute the declared accumulator, so all
// sums and events have the bits of the software kernels.
#pragma once

#include <cstdint>
#include <string>

#include "emulation/kernels/args/gemm_args.h"
#include "emulation/kernels/cuda/device.h"

namespace lockstep::cuda {

// Below this many products of factors, an H200 with its copies took longer than 16 cores of its
// Xeon (docs/gpu-status.md).
inline constexpr int64_t kLeastGpuProducts = int64_t{1} << 22;

// True if a kernel forms sums of these factors under this accumulator: tensor cores of FP16, BF16,
// TF32 and FP8, and fused chains up to FP32. Formats may be null, as in GemmArgs.
bool is_model_sum(const Accumulator& accumulator, const Format* a, const Format* b);

// `software` forms the other sums, and those of fewer than `least_products` products.
void model_gemm(const GemmArgs<float>& args, void (*software)(const GemmArgs<float>&),
                Device& device, int64_t least_products);

// The product and the rounding of its result, both on the device, which sends back the rounded
// numbers, the statistics and the events. False: the device forms no such sums, or fewer than
// `least_products` products, or does not round so, and nothing has been computed. Requires: C is
// dense.
bool model_rounded_gemm(const GemmArgs<float>& args, const GemmRounding& rounding, Device& device,
                        int64_t least_products);

// Products that the device's kernels have formed since the program began.
int64_t model_products(Device& device);
// A sentence per device whose kernels have formed products, for people; "" if none has.
std::string model_text();

}  // namespace lockstep::cuda
