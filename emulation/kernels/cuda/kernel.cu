// One kernel function for all kernels: a thread per index.
#include "emulation/kernels/cuda/kernel.h"

#include <cuda_runtime.h>

#include <algorithm>

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostBlocks = 1 << 20;

template <typename K>
__global__ void run(const K kernel) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < kernel.count();
       i += step) {
    kernel(i);
  }
}

template <typename K>
void launch(const K& kernel) {
  if (kernel.count() == 0) return;
  const int64_t blocks = std::min((kernel.count() + kThreads - 1) / kThreads, kMostBlocks);
  run<<<static_cast<unsigned>(blocks), kThreads>>>(kernel);
}

}  // namespace

std::string launch_on_gpu(const Kernel& kernel) {
  std::visit([](const auto& one) { launch(one); }, kernel);
  cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) status = cudaDeviceSynchronize();
  return status == cudaSuccess ? "" : cudaGetErrorString(status);
}

std::string why_no_kernels() {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, run<BlockProduct>) == cudaSuccess) return "";
  cudaGetLastError();  // clears the error
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return "the GPU does not answer";
  return std::string("this build has no code for ") + properties.name + " (sm_" +
         std::to_string(properties.major) + std::to_string(properties.minor) + ")";
}

}  // namespace lockstep::cuda
