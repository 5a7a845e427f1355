#include "emulation/kernels/cuda_devices.h"

#include <atomic>

#include "emulation/kernels/cuda/device.h"
#include "emulation/kernels/cuda/gemm.h"
#include "emulation/kernels/cuda/model_gemm.h"

namespace lockstep {
namespace {

std::atomic<bool> is_gpu_used{false};

}  // namespace

std::string why_no_gpu() {
  std::string why_not;
  cuda::gpu_device(&why_not);
  return why_not;
}

std::string why_no_model_kernels() {
  std::string why_not;
  if (cuda::gpu_device(&why_not) == nullptr) return why_not;
  is_gpu_used = true;
  return cuda::why_no_kernels();
}

const Hardware& gpu_hardware() {
  is_gpu_used = true;
  return cuda::gpu_device()->hardware();
}

const Hardware& stand_in_hardware() {
  return cuda::host_device().hardware();
}

bool is_cuda_sum(const Accumulator& accumulator, const Format* a, const Format* b) {
  return cuda::is_device_sum(accumulator, a, b);
}

bool is_modelled_sum(const Accumulator& accumulator, const Format* a, const Format* b) {
  return cuda::is_model_sum(accumulator, a, b);
}

std::string used_gpu() {
  return is_gpu_used ? cuda::gpu_device()->name() : "none";
}

std::string cuda_summary() {
  return cuda::traffic_text() + cuda::model_text();
}

}  // namespace lockstep
