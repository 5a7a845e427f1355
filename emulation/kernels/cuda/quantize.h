// Rounds and measures an array that is on a device, and copies the result back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulation/kernels/args/quantize_spec.h"
#include "emulation/kernels/cuda/device.h"
#include "emulation/kernels/cuda/device_state.h"
#include "emulation/kernels/cuda/rounding_pass.h"

namespace lockstep::cuda {

struct CopiedBytes {
  int64_t up = 0, down = 0;  // to the device and back
};

class DeviceQuantizer {
 public:
  explicit DeviceQuantizer(Device& device)
      : device_(device), after_(device), ranges_(device), counts_(device), sums_(device) {}

  // False if the result is not an array of floats, because FP32 does not contain the format.
  static bool rounds(const QuantizeSpec& spec);

  // scalar_quantize of the numbers, in every bit and number. `after`: in the host's memory; not
  // written with measure_only. `stats` may be null. On the device: rounding, counts, extremes,
  // histogram, hash and the sums of virtual lanes. The host joins those sums.
  CopiedBytes run(const NumbersOnDevice& before, const QuantizeSpec& spec, float* after,
                  TensorStats* stats);

  int64_t allocations() const {
    return after_.allocations() + ranges_.allocations() + counts_.allocations() +
           sums_.allocations();
  }

 private:
  void measure(const RoundElements& round, const Format& format, TensorStats* stats);
  template <typename T>
  CheckedArray<T> array(Buffer& buffer, int64_t count);
  void upload(void* to, const void* from, size_t bytes);
  void download(void* to, const void* from, size_t bytes);

  Device& device_;
  Buffer after_, ranges_, counts_, sums_;
  std::vector<std::byte> codes_;
  CopiedBytes copied_;  // of this run
};

}  // namespace lockstep::cuda
