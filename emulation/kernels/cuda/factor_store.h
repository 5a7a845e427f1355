// Factors that stay in a device's memory until the next product that reads the same array.
// A weight is read by every micro-batch, time step and evaluation; it is copied again only after it
// has changed. Knows nothing of products.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "emulation/kernels/cuda/device_state.h"

namespace lockstep::cuda {

// Where factors come from, and how they are laid out on the device.
struct FactorKey {
  const float* data;
  int64_t line_step, k_step, lines, k, matrices;
  Type type;

  auto order() const { return std::tie(data, line_step, k_step, lines, k, matrices, type); }
  bool operator<(const FactorKey& other) const { return order() < other.order(); }
};

// Keeps every array's codes on the host, too: they are compared byte by byte, so that memory that
// was changed or is used for something else is never mistaken for what it held. At most
// `most_bytes` stay; those that were not read for the longest time leave first.
class FactorStore {
 public:
  explicit FactorStore(Device& device, size_t most_bytes = size_t{1} << 30)
      : device_(device), most_bytes_(most_bytes) {}

  struct Stored {
    const void* memory;  // valid until the next call but one
    bool was_there;
  };
  Stored put(const FactorKey& key, const std::vector<std::byte>& codes) {
    Entry& entry = entries_.try_emplace(key, device_).first->second;
    const int64_t last_read = reads_;
    entry.read = ++reads_;
    if (entry.memory.holds(codes.size()) && entry.codes == codes) {
      return {entry.memory.reserve(codes.size()), true};
    }
    bytes_ += codes.size() - entry.codes.size();
    entry.codes = codes;
    make_room(last_read);
    const int64_t before = entry.memory.allocations();
    void* memory = entry.memory.reserve(codes.size());
    allocations_ += entry.memory.allocations() - before;
    device_.upload(memory, codes.data(), codes.size());
    return {memory, false};
  }
  int64_t allocations() const { return allocations_; }

 private:
  struct Entry {
    explicit Entry(Device& device) : memory(device) {}
    std::vector<std::byte> codes;
    Buffer memory;
    int64_t read = 0;
  };

  // Drops what was read before `kept`.
  void make_room(int64_t kept) {
    while (bytes_ > most_bytes_) {
      const auto oldest = std::ranges::min_element(
          entries_, {}, [](const auto& entry) { return entry.second.read; });
      if (oldest->second.read >= kept) return;
      bytes_ -= oldest->second.codes.size();
      oldest->second.memory.release();
      entries_.erase(oldest);
    }
  }

  Device& device_;
  size_t most_bytes_, bytes_ = 0;
  std::map<FactorKey, Entry> entries_;
  int64_t reads_ = 0, allocations_ = 0;
};

}  // namespace lockstep::cuda
