// Cuts a matrix product into pieces that fit the caches.
// Plain data shared by all instruction sets: blocks, packed panels and facts about their values.
//
//   for every kBlockN columns, block of k, kBlockM rows:   pack A and B into panels, then
//     for every group of strips that fits a second-level cache, panel of A, strip of the group:
//       C tile (rows x columns in registers) += A * B over the block of k
// C holds the running sums between blocks of k: exact, since they are values of C's container.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "emulation/kernels/workspace.h"

namespace lockstep {

// The longer a block of k, the less often C is read and written. A panel of A (14 x 768 floats, 42
// KB) then still fits a first-level cache of 48 KB while the strips of a group are read.
inline constexpr int64_t kBlockK = 768;
// Every block of k except the last is a multiple of this, so that blocks of products are never cut.
inline constexpr int64_t kDepthStep = 128;
// Elements of a block of A or B with all of k, for sums that cannot be cut: 32 MB.
inline constexpr int64_t kWholeDepthElements = int64_t{8} << 20;
inline constexpr int64_t kBlockM = 2016;  // a multiple of every kernel's rows
inline constexpr int64_t kBlockN = 2048;  // a multiple of every kernel's columns
// With few rows, every packed strip of B is used only a few times. Then blocks have so few columns
// that they stay in a second-level cache between packing and use; a task has kBlockN columns.
inline constexpr int64_t kFewRows = 128;
inline constexpr int64_t kNarrowBlockN = 128;
// Half of a second-level cache of 1 MB; the rest is for A and C.
inline constexpr int64_t kGroupBytes = 512 << 10;
// Panels of one task: with a group of strips, a few hundred microseconds of work.
inline constexpr int64_t kTaskPanels = 9;
// Strips of one task, for kernels that do not size their groups by bytes.
inline constexpr int64_t kTaskStrips = 16;
// Elements that one task packs.
inline constexpr int64_t kPackTask = 1 << 15;
// Cache lines of one row that are fetched together: a page of 4 KB.
inline constexpr int64_t kAheadRun = 64;
// With fewer multiply-adds, waking another thread does not pay.
inline constexpr int64_t kSerialWork = 1 << 16;

inline int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}

// Size of the blocks that `total` is cut into: equal blocks of at most `limit`, multiples of
// `step`, no short last one.
inline int64_t block_size(int64_t total, int64_t limit, int64_t step) {
  const int64_t blocks = std::max<int64_t>(1, ceil_div(total, limit));
  return ceil_div(ceil_div(total, blocks), step) * step;
}

// Facts about the values in one packed panel, as far as a kernel's short cuts depend on them. Bits
// are those of floats with the sign cleared.
struct PanelFacts {
  uint32_t low_bits = 0;                                     // all bits OR-ed
  uint32_t largest = 0;                                      // largest magnitude
  uint32_t smallest = std::numeric_limits<uint32_t>::max();  // smallest nonzero magnitude
};

inline constexpr uint32_t kFloatInfinityBits = 0x7f800000;
inline bool is_finite(const PanelFacts& facts) {
  return facts.largest < kFloatInfinityBits;
}
inline constexpr int kFloatFractionBits = 23, kFloatBias = 127;
inline bool has_subnormals(const PanelFacts& facts) {
  return facts.smallest < uint32_t{1} << kFloatFractionBits;
}

// Bounds of the exponents of nonzero products of two panels: 2^lowest <= |a * b| < 2^(highest + 1).
// Subnormal factors count with FP32's emin, infinities and NaN as 2^128.
struct ProductExponents {
  ProductExponents(const PanelFacts& a, const PanelFacts& b)
      : lowest(exponent(a.smallest) + exponent(b.smallest)),
        highest(exponent(a.largest) + exponent(b.largest) + 1) {}
  int lowest, highest;

 private:
  static int exponent(uint32_t bits) {
    return std::max(static_cast<int>(bits >> kFloatFractionBits), 1) - kFloatBias;
  }
};

}  // namespace lockstep
