// The thread that holds each matrix element when an NVIDIA matrix instruction runs.
// Matrices are packed in 32-bit words along k, low bits first: 4 FP8, 2 FP16 or BF16, 1 TF32 number
// per word. In words, every shape looks the same: the PTX ISA's lists of elements for each shape
// become one rule. Only index arithmetic; tests compare it with the ISA's tables.
//
//   lane = 4 g + t     g = 0..7 (the ISA's groupID), t = 0..3 (threadID_in_group)
//
//   A (16 rows, k in words)         B (8 columns, k in words)     C, D (16 rows, 8 columns)
//           words 0-3   words 4-7           words 0-3  words 4-7            columns 2t, 2t + 1
//   row g    reg 0       reg 2      col g    reg 0      reg 1     row g      reg 0, 1 (FP16: 0)
//   row g+8  reg 1       reg 3               at word t, t + 4     row g + 8  reg 2, 3 (FP16: 1)
//            at word t   at word t + 4
//
// Source: PTX ISA 9.0, "Matrix Fragments for mma.m16n8k4 / k8 / k16 / k32" (9.7.14.5) and
// "Register Fragments and Shared Memory Matrix Layouts" of wgmma (9.7.15.5.1).
#pragma once

#include <cstdint>

#include "src/core/host_device.h"

namespace lockstep::mma {

inline constexpr int kWarpLanes = 32;
inline constexpr int kWordBits = 32;
inline constexpr int kGroupRows = 8;   // rows that the groups of a warp cover
inline constexpr int kGroupWords = 4;  // threads of a group, one word of k each

struct WordPlace {
  int row;   // of A, C, D; the column of B
  int word;  // along the row: k in words; in C and D the columns in words
};

LOCKSTEP_HOST_DEVICE constexpr WordPlace a_word(int lane, int reg) {
  return {lane / kGroupWords + kGroupRows * (reg % 2),
          lane % kGroupWords + kGroupWords * (reg / 2)};
}

LOCKSTEP_HOST_DEVICE constexpr WordPlace b_word(int lane, int reg) {
  return {lane / kGroupWords, lane % kGroupWords + kGroupWords * reg};
}

// `halves`: C and D are FP16, two columns in a word.
LOCKSTEP_HOST_DEVICE constexpr WordPlace c_word(int lane, int reg, bool halves) {
  const int row = lane / kGroupWords, pair = lane % kGroupWords;
  if (halves) return {row + kGroupRows * reg, pair};
  return {row + kGroupRows * (reg / 2), 2 * pair + reg % 2};
}

// wgmma reads A and B from shared memory in core matrices of 8 rows x 16 bytes, 128 bytes each,
// here without swizzling and k-major. Every shape has 32 bytes of k: two adjacent core matrices,
// then the next 8 rows.
inline constexpr int kCoreRows = 8;
inline constexpr int kCoreWords = 4;                           // 16 bytes
inline constexpr int kCoreBytes = kCoreRows * kCoreWords * 4;  // 128
inline constexpr int kWgmmaWords = 8;                          // of k, in every shape
inline constexpr int kLeadingBytes = kCoreBytes;               // to the next 16 bytes of k
inline constexpr int kStrideBytes = kWgmmaWords / kCoreWords * kCoreBytes;  // to the next 8 rows

// The word of shared memory that holds word `word` of row (of B: column) `row`.
LOCKSTEP_HOST_DEVICE constexpr int core_matrix_word(int row, int word) {
  return (row / kCoreRows * kStrideBytes + word / kCoreWords * kLeadingBytes) / 4 +
         row % kCoreRows * kCoreWords + word % kCoreWords;
}

// The matrix descriptor of wgmma:
//   bits 0-13 address, 16-29 leading dimension offset, 32-45 stride dimension offset, each in units
//   of 16 bytes; 49-51 base offset 0; 62-63 swizzling 0 (none)
// Requires: a shared-memory address that is a multiple of 16.
LOCKSTEP_HOST_DEVICE constexpr uint64_t matrix_descriptor(uint32_t shared_address) {
  constexpr uint32_t kAddressMask = 0x3ffff;
  constexpr int kUnitShift = 4, kLeadingShift = 16, kStrideShift = 32;
  return static_cast<uint64_t>((shared_address & kAddressMask) >> kUnitShift) |
         static_cast<uint64_t>(kLeadingBytes >> kUnitShift) << kLeadingShift |
         static_cast<uint64_t>(kStrideBytes >> kUnitShift) << kStrideShift;
}

// Number `index`, with `bits` bits, in packed words.
LOCKSTEP_HOST_DEVICE inline uint32_t packed_number(const uint32_t* words, int index, int bits) {
  const int per_word = kWordBits / bits;
  const uint32_t word = words[index / per_word];
  if (per_word == 1) return word;
  return word >> (index % per_word * bits) & ((uint32_t{1} << bits) - 1);
}

}  // namespace lockstep::mma
