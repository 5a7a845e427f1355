// What code for devices keeps between its calls: buffers that grow, and a state for each device.
// Knows nothing of products.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "emulation/kernels/cuda/device.h"

namespace lockstep::cuda {

// A device's buffer that grows.
class Buffer {
 public:
  explicit Buffer(Device& device) : device_(device) {}
  ~Buffer() { release(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  // At least `bytes` bytes. What the buffer held is lost when it grows.
  void* reserve(size_t bytes) {
    if (!holds(bytes)) {
      release();
      data_ = device_.allocate(bytes);
      capacity_ = bytes;
      ++allocations_;
    }
    return data_;
  }
  bool holds(size_t bytes) const { return bytes <= capacity_; }
  int64_t allocations() const { return allocations_; }

 private:
  void release() {
    if (data_ != nullptr) device_.release(data_);
    data_ = nullptr, capacity_ = 0;
  }

  Device& device_;
  void* data_ = nullptr;
  size_t capacity_ = 0;
  int64_t allocations_ = 0;
};

// State(Device&), made when it is first asked for. Never destroyed: at the end of the program the
// driver may be gone before it.
template <typename State>
class DeviceStates {
 public:
  static State& of(Device& device) {
    DeviceStates& states = instance();
    const std::lock_guard lock(states.mutex_);
    State*& state = states.of_device_[&device];
    if (state == nullptr) state = new State(device);
    return *state;
  }
  static std::vector<std::pair<Device*, State*>> all() {
    DeviceStates& states = instance();
    const std::lock_guard lock(states.mutex_);
    return {states.of_device_.begin(), states.of_device_.end()};
  }

 private:
  static DeviceStates& instance() {
    static auto& all = *new DeviceStates;
    return all;
  }
  std::mutex mutex_;
  std::map<Device*, State*> of_device_;
};

}  // namespace lockstep::cuda
