#include "emulation/kernels/cuda/gpu_presence.h"

#ifdef LOCKSTEP_CUDA

#include <cuda_runtime_api.h>

namespace lockstep::cuda {

std::string why_no_gpu() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return "";
  const bool usual = status == cudaSuccess || status == cudaErrorNoDevice ||
                     status == cudaErrorInsufficientDriver;  // also where there is no driver
  return usual ? "no GPU" : std::string("no GPU: ") + cudaGetErrorString(status);
}

}  // namespace lockstep::cuda

#endif
