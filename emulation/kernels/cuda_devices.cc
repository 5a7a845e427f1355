#include "emulation/kernels/cuda_devices.h"

#include <atomic>

#include "emulation/kernels/cuda/device.h"
#include "emulation/kernels/cuda/gemm.h"

namespace lockstep {
namespace {

std::atomic<bool> is_gpu_used{false};

}  // namespace

std::string why_no_gpu() {
  std::string why_not;
  cuda::gpu_device(&why_not);
  return why_not;
}

const Hardware& gpu_hardware() {
  is_gpu_used = true;
  return cuda::gpu_device()->hardware();
}

const Hardware& stand_in_hardware() {
  return cuda::host_device().hardware();
}

bool is_cuda_sum(const Accumulator& accumulator, const Format& a, const Format& b) {
  return cuda::is_device_sum(accumulator, &a, &b);
}

std::string used_gpu() {
  return is_gpu_used ? cuda::gpu_device()->name() : "none";
}

std::string cuda_summary() {
  return cuda::traffic_text();
}

}  // namespace lockstep
