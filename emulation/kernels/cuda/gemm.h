// Matrix products on a device: factors are packed to storage bits, copied there unless they are
// there already, multiplied, and the sums are copied back. The software kernels form the sums that
// no tensor core forms.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "emulation/kernels/args/device_work.h"
#include "emulation/kernels/args/gemm_args.h"
#include "emulation/kernels/cuda/device.h"

namespace lockstep::cuda {

// True if a device forms sums of these factors under this accumulator: a row of tensor cores that
// cuBLAS can be asked for. Not FP8 with sums in FP16 or with two factors in E5M2, nor rows of
// instructions that it does not use (mma.sync of FP8, WMMA of TF32), nor switched rules. Formats
// may be null, as in GemmArgs.
bool is_device_sum(const Accumulator& accumulator, const Format* a, const Format* b);

// `software` forms the other sums, sums of no products, and sums that start from C: a library adds
// C at the end. Events: a result that is NaN, or infinite although its factors are finite. What
// happens inside a GPU's sum cannot be seen.
void cuda_gemm(const GemmArgs<float>& args, void (*software)(const GemmArgs<float>&),
               Device& device);

// The most elements of A, B and C in one call: 256 MiB of FP32 numbers, which the device and the
// host hold at once.
inline constexpr int64_t kMostStackElements = int64_t{1} << 26;

// A stack of products in few calls of the device, each of at most `most_elements` elements of A, B
// and C together (and of at least one product). False: the device does not form such sums, and
// nothing has been computed.
bool cuda_stacked_gemm(const StackedGemm<float>& stack, void (*software)(const GemmArgs<float>&),
                       Device& device, int64_t most_elements = kMostStackElements);

// The product and the rounding of its result, both on the device, which then sends back the rounded
// numbers and the statistics; the sums, too, if events are wanted, which are read from them. False:
// the device does not form such sums or does not round so, and nothing has been computed.
// Requires: C is dense.
bool cuda_rounded_gemm(const GemmArgs<float>& args, const GemmRounding& rounding,
                       void (*software)(const GemmArgs<float>&), Device& device);

// What the engine has done on a device since the program began.
struct Traffic {
  int64_t products = 0;
  int64_t roundings = 0;                 // of results that lay on the device
  int64_t bytes_up = 0, bytes_down = 0;  // copied to the device and back
  int64_t allocations = 0;               // of device memory
  double seconds = 0;                    // of the products alone, without packing and copies
  // "hopper_fp16 fp16 x fp16 128x64x256" -> the algorithm that the device chose
  std::map<std::string, Algorithm> algorithms;
};
Traffic traffic(Device& device);
// The key of a product in Traffic::algorithms.
std::string product_text(const GemmArgs<float>& args, const Format& a, const Format& b,
                         int64_t batch = 1);
// What it has done since the last call, without steps and sites.
DeviceWork take_work(Device& device);
// A line or two per device that has multiplied, for people; "" if none has.
std::string traffic_text();

}  // namespace lockstep::cuda
