// Factors that stay in a device's memory for the next product that reads the same array.
// A weight is read by every micro-batch, time step and evaluation; it is copied again only after it
// has changed. Activations change in every step and are not kept. Knows nothing of products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <tuple>
#include <vector>

#include "emulation/kernels/cuda/device_state.h"

namespace lockstep::cuda {

// The place of factors in a product, where they come from, and how they lie on the device.
struct FactorKey {
  int operand;  // 0: A, 1: B
  const float* data;
  int64_t line_step, k_step, lines, k, matrices;
  Type type;

  auto order() const {
    return std::tie(operand, data, line_step, k_step, lines, k, matrices, type);
  }
  bool operator<(const FactorKey& other) const { return order() < other.order(); }
};

// An array is kept once it has been read twice without a change. Its bytes stay on the host, too,
// and are compared, so that memory that was changed or is used for something else is never mistaken
// for what it held.
class FactorStore {
 public:
  static constexpr size_t kMostBytes = size_t{512} << 20;  // here and there, each

  static constexpr int64_t kIdleReads = 1 << 16;  // dozens of steps

  explicit FactorStore(Device& device, size_t most_bytes = kMostBytes,
                       int64_t idle_reads = kIdleReads)
      : device_(device),
        most_bytes_(most_bytes),
        idle_reads_(idle_reads),
        passing_{Buffer(device), Buffer(device)} {}

  struct Stored {
    const void* memory;  // until the next call with the same operand
    bool was_there;
  };
  Stored put(const FactorKey& key, const std::vector<std::byte>& codes);
  int64_t allocations() const;
  size_t kept_bytes() const { return bytes_; }

 private:
  struct Entry {
    explicit Entry(Device& device) : memory(device) {}
    std::vector<std::byte> codes;
    Buffer memory;
    int64_t last_read = 0;
  };

  Stored pass(const FactorKey& key, const std::vector<std::byte>& codes);
  bool keeps(const FactorKey& key, const std::vector<std::byte>& codes);
  bool has_room_for(size_t bytes);

  Device& device_;
  const size_t most_bytes_;
  const int64_t idle_reads_;
  Buffer passing_[2];  // by operand: what is not kept
  std::map<FactorKey, Entry> kept_;
  std::map<FactorKey, uint64_t> seen_;  // hashes of what was read last and is not kept
  size_t bytes_ = 0;                    // of the codes in kept_
  int64_t reads_ = 0, dropped_allocations_ = 0;
};

}  // namespace lockstep::cuda
