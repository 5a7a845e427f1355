// An array in a device's memory, as kernels see it. The host's build of a kernel checks every
// access; a GPU's does not.
#pragma once

#include <cstdint>
#ifndef __CUDA_ARCH__
#include <stdexcept>
#include <string>
#endif

#include "src/core/host_device.h"

namespace lockstep::cuda {

template <typename T>
struct CheckedArray {
  T* data = nullptr;
  int64_t count = 0;

  // Throws, on the host: std::logic_error unless 0 <= i < count.
  LOCKSTEP_HOST_DEVICE T& operator[](int64_t i) const {
#ifndef __CUDA_ARCH__
    if (i < 0 || i >= count) {
      throw std::logic_error("kernel: element " + std::to_string(i) + " of " +
                             std::to_string(count));
    }
#endif
    return data[i];
  }
};

}  // namespace lockstep::cuda
