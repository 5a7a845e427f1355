// How is a matrix product cut into pieces that fit the caches?
// Plain data shared by all instruction sets: blocks, packed panels and what is known of their
// values.
//
//   for every NC columns, KC of k, MC rows:   pack A and B into panels, then
//     for every task of panels x strips:        C tile (rows x columns in registers) += A * B over
//     KC
// C holds the running sums between k blocks: exact, since they are values of C's container.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <span>

namespace lockstep {

// Sizes for 48 KB of L1 and 1 MB of L2: a strip of B (KC x 32 floats = 32 KB) stays in L1 while
// panels of A pass by; a block of A and one of B together stay in L2 or a core's share of L3.
inline constexpr int64_t kBlockK = 256;
inline constexpr int64_t kBlockM = 2016;  // a multiple of every kernel's rows
inline constexpr int64_t kBlockN = 2048;
inline constexpr int64_t kTaskPanels = 9, kTaskStrips = 16;
// Multiply-adds below which waking another thread does not pay.
inline constexpr int64_t kSerialWork = 1 << 16;

// The values in one packed panel, as far as a kernel's short cuts depend on them. Bits are those of
// floats with the sign cleared.
struct PanelFacts {
  uint32_t low_bits = 0;                                     // all bits OR-ed
  uint32_t largest = 0;                                      // largest magnitude
  uint32_t smallest = std::numeric_limits<uint32_t>::max();  // smallest nonzero magnitude
};

inline constexpr uint32_t kFloatInfinityBits = 0x7f800000;
inline bool is_finite(const PanelFacts& facts) {
  return facts.largest < kFloatInfinityBits;
}

// Grow-only scratch memory, 64-byte aligned; one per thread and purpose.
template <typename T>
class Workspace {
 public:
  std::span<T> get(size_t count) {
    if (count > capacity_) {
      constexpr size_t kAlign = 64;
      const size_t bytes = (count * sizeof(T) + kAlign - 1) / kAlign * kAlign;
      data_.reset(static_cast<T*>(std::aligned_alloc(kAlign, bytes)));
      capacity_ = data_ != nullptr ? count : 0;
      if (data_ == nullptr) throw std::bad_alloc();
    }
    return {data_.get(), count};
  }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  size_t capacity_ = 0;
};

}  // namespace lockstep
