// What is in an element's hash?
//
//   float    key(i) = i_low * A + i_high * B + C (32 bits)     hash = (bits ^ key(i))^2 (64 bits)
//
// Squaring is one-to-one on 32-bit numbers, so one changed element always changes its hash and with
// it the sum over the array modulo 2^64; it is not linear, so two changes cancel only by accident:
// with exchanged elements a, b the sums differ by (a^k)^2 + (b^l)^2 - (b^k)^2 - (a^l)^2. A vector
// needs two 32x32-bit multiplications and five cheap operations for it.
// Doubles take an exclusive-or with a key of 64 bits and a mix that is one-to-one on 64 bits.
// It guards against accidents, not against an adversary.
#pragma once

#include <cstdint>

namespace lockstep {

// Odd numbers with about half of their bits set, drawn from the fractional parts of square roots of
// 2, 3, 5, 7, 11 and 13 (lowest bit set).
inline constexpr uint32_t kHashIndexLow = 0x6A09E667u;
inline constexpr uint32_t kHashIndexHigh = 0xBB67AE85u;
inline constexpr uint32_t kHashOffset = 0x3C6EF373u;
inline constexpr uint64_t kHashIndex64 = 0xA54FF53B3C6EF373ull;
inline constexpr uint64_t kHashMultiplier64 = 0x9B05688D510E527Full;
inline constexpr int kHashShift64 = 31;

constexpr uint32_t hash_key(uint64_t index) {
  return static_cast<uint32_t>(index) * kHashIndexLow +
         static_cast<uint32_t>(index >> 32) * kHashIndexHigh + kHashOffset;
}

}  // namespace lockstep
