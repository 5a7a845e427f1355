// The hash of an element, for comparing arrays.
//
//   float   row = i / 16, lane = i % 16         hash = factor(lane) * (bits ^ key(row))^2 mod 2^64
//           key(row) = row_low * A + row_high * B + C (32 bits)     factor: 16 odd numbers
//
// Squaring is one-to-one on 32-bit numbers, and an odd factor is one-to-one on 64-bit numbers. So
// one changed element always changes its hash, and with it the sum over the array modulo 2^64.
// Squares are not linear, so two changes cancel only by accident. A vector needs one exclusive-or,
// one shift, two multiplications and two additions: the factors apply at the end of the array.
// Doubles use an exclusive-or with a 64-bit key and a mix that is one-to-one on 64 bits.
// The hash protects against accidents, not against an adversary.
#pragma once

#include <bit>
#include <cstdint>

#include "src/core/host_device.h"

namespace lockstep {

inline constexpr uint64_t kHashLanes = 16;  // the rows of emulation/kernels/reduction.h
// Odd numbers with about half of their bits set, drawn from the fractional parts of square roots of
// 2, 3, 5, 7, 11 and 13 (lowest bit set).
inline constexpr uint32_t kHashRowLow = 0x6A09E667u;
inline constexpr uint32_t kHashRowHigh = 0xBB67AE85u;
inline constexpr uint32_t kHashRowOffset = 0x3C6EF373u;
inline constexpr uint64_t kHashIndex64 = 0xA54FF53B3C6EF373ull;
inline constexpr uint64_t kHashMultiplier64 = 0x9B05688D510E527Full;
inline constexpr int kHashShift64 = 31;

LOCKSTEP_HOST_DEVICE constexpr uint32_t hash_row_key(uint64_t row) {
  return static_cast<uint32_t>(row) * kHashRowLow +
         static_cast<uint32_t>(row >> 32) * kHashRowHigh + kHashRowOffset;
}
// Odd factors. No two of them have a small ratio.
LOCKSTEP_HOST_DEVICE constexpr uint64_t hash_factor(uint64_t lane) {
  return ((lane + 1) * kHashIndex64 ^ kHashMultiplier64) | 1;
}

// The hash is the sum modulo 2^64 of hash_element over the elements, so that any partition of the
// array gives the same number. One changed element always changes it.
LOCKSTEP_HOST_DEVICE inline uint64_t hash_element(float value, uint64_t index) {
  const uint64_t mixed = std::bit_cast<uint32_t>(value) ^ hash_row_key(index / kHashLanes);
  return hash_factor(index % kHashLanes) * (mixed * mixed);
}
uint64_t hash_element(double value, uint64_t index);

}  // namespace lockstep
