// Matrix products on a device: factors are packed to storage bits, copied there, multiplied, and
// the sums are copied back. The software kernels form the sums that no tensor core forms.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "emulation/kernels/args/gemm_args.h"
#include "emulation/kernels/cuda/device.h"

namespace lockstep::cuda {

// True if a device forms sums under this accumulator: those of tensor cores.
bool is_device_sum(const Accumulator& accumulator);

// `software` forms the other sums; those without products; and those whose types cuBLAS does not
// take: FP8 with sums in FP16, FP8 with two factors in E5M2.
// Events: only infinities and NaN of the results (kStepToInfinity, kStepNan). What happens inside a
// GPU's sum cannot be seen.
void cuda_gemm(const GemmArgs<float>& args, void (*software)(const GemmArgs<float>&),
               Device& device);

// What the engine has done on a device since the program began.
struct Traffic {
  int64_t products = 0;
  int64_t bytes_up = 0, bytes_down = 0;  // copied to the device and back
  int64_t allocations = 0;               // of device memory
  double seconds = 0;                    // of the products alone, without packing and copies
  // "fp16 x fp16 to fp32 128x64x256" -> the algorithm that the device chose
  std::map<std::string, std::string> algorithms;
};
Traffic traffic(Device& device);

}  // namespace lockstep::cuda
