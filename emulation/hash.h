// What is in an element's hash?
// For floats two 32-bit mixes of (bits, index), each a bijection of the bits at a fixed index: an
// exclusive-or with a key, then exclusive-or-shifts and an odd multiplication. So one changed
// element changes both halves of its hash and with it the sum over the array. 32-bit lanes suffice.
// It guards against accidents, not against an adversary.
//
//   key(i) = i_low * A + i_high * B     low  = mix0(bits ^ key_low(i))     hash = high : low
//                                       high = mix1(low ^ key_high(i))
#pragma once

#include <cstdint>

namespace lockstep {

// Odd numbers with about half of their bits set, drawn from the fractional parts of square roots of
// 2, 3, 5, 7, 11 and 13 (lowest bit set).
inline constexpr uint32_t kHashIndexLow0 = 0x6A09E667u;
inline constexpr uint32_t kHashIndexHigh0 = 0xBB67AE85u;
inline constexpr uint32_t kHashIndexLow1 = 0x3C6EF373u;
inline constexpr uint32_t kHashIndexHigh1 = 0xA54FF53Bu;
inline constexpr uint32_t kHashMultiplier0 = 0x510E527Fu;
inline constexpr uint32_t kHashMultiplier1 = 0x9B05688Du;
inline constexpr uint64_t kHashMultiplier64 = 0x9B05688D510E527Full;
inline constexpr int kHashShift0 = 16;
inline constexpr int kHashShift1 = 15;
inline constexpr int kHashShift64 = 31;

struct HashKeys {
  uint32_t low, high;
  explicit HashKeys(uint64_t index)
      : low(static_cast<uint32_t>(index) * kHashIndexLow0 +
            static_cast<uint32_t>(index >> 32) * kHashIndexHigh0),
        high(static_cast<uint32_t>(index) * kHashIndexLow1 +
             static_cast<uint32_t>(index >> 32) * kHashIndexHigh1) {}
};

}  // namespace lockstep
