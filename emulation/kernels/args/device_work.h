// What a device did for the kernels of a set. Plain data; emulation/kernels/cuda fills it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace lockstep {

// Products of one size whose sums the device's library formed in the same way.
struct DeviceProduct {
  int64_t step = 0;   // the first such step
  int64_t site = -1;  // of the sums, or of the op's output where its sums have no site
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;  // products in one call
  // The library's numbers (cublasLtMatmulAlgoConfigAttributes_t); -1: it has none. `split_k` is an
  // upper limit.
  int64_t algorithm = -1, tile = -1, stages = -1, split_k = -1, reduction = -1;
  int64_t most_parts = 1;  // upper limit of the parts into which k may be split

  // All but `step` are equal.
  bool is_like(const DeviceProduct& other) const {
    DeviceProduct same = other;
    same.step = step;
    return *this == same;
  }
  bool operator==(const DeviceProduct&) const = default;
};

struct DeviceWork {
  int64_t products = 0;                  // calls: those of a batch are one
  int64_t bytes_up = 0, bytes_down = 0;  // copied to the device and back
  int64_t bytes_kept = 0;                // that were there already and not copied again
  std::vector<DeviceProduct> kinds;      // each once

  void note(const DeviceProduct& product) {
    const auto is_like = [&](const DeviceProduct& known) { return known.is_like(product); };
    if (std::ranges::none_of(kinds, is_like)) kinds.push_back(product);
  }
  void merge(const DeviceWork& other) {
    products += other.products, bytes_up += other.bytes_up, bytes_down += other.bytes_down;
    bytes_kept += other.bytes_kept;
    for (const DeviceProduct& product : other.kinds) note(product);
  }
};

}  // namespace lockstep
