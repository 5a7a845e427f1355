// What does the model say about one element of a tile D = A * B + C?
// A tile is one instruction's matrices in packed words; a rule is the accumulator's block with what
// it needs of the operands' encodings. Runs on the host and on the device, so that 10^8 results are
// compared where they are made.
#pragma once

#include <cstdint>

#include "emulation/aligned_block_core.h"
#include "emulation/cuda/mma_instruction.h"
#include "emulation/cuda/mma_layout.h"

namespace lockstep::mma {

// What a TF32 operand is made of. The hardware is said to cut; cvt.rna.tf32.f32 rounds.
enum class Tf32Input : uint8_t { kTruncate, kNearestAway, kNearestEven };

struct Rule {
  BlockSpec block;
  Tf32Input tf32_input = Tf32Input::kTruncate;
};

// A: m rows of k, B: n columns of k, C: m rows of n.
struct Tile {
  const uint32_t* a;
  const uint32_t* b;
  const uint32_t* c;
};

// The register that hardware rounding its TF32 inputs would use instead of `bits`.
LOCKSTEP_HOST_DEVICE inline uint32_t tf32_register(uint32_t bits, Tf32Input input) {
  constexpr uint32_t kHalf = uint32_t{1} << 12, kLastKept = uint32_t{1} << 13;
  constexpr BlockEncoding kFp32 = register_encoding(BlockOutput::kFp32TowardZero);
  if (input == Tf32Input::kTruncate || kFp32.is_nan(bits) ||
      (bits & kFp32.infinity()) == kFp32.infinity()) {
    return bits;
  }
  if (input == Tf32Input::kNearestAway) return bits + kHalf;
  return bits + (kHalf - 1) + ((bits & kLastKept) != 0 ? 1 : 0);
}

// The factors of a row of A or a column of B; zeros beyond k.
struct RowFactors {
  const uint32_t* words;
  int k;
  Type type;
  Tf32Input tf32_input;

  LOCKSTEP_HOST_DEVICE BlockFactor operator()(int64_t i) const {
    uint32_t bits = 0;
    if (i < k) {
      bits = packed_number(words, static_cast<int>(i), bits_of(type));
      if (type == Type::kTf32) bits = tf32_register(bits, tf32_input);
    }
    return decode_bits(bits, encoding_of(type));
  }
};

LOCKSTEP_HOST_DEVICE inline uint32_t tile_addend(const Shape& shape, const Tile& tile, int row,
                                                 int column) {
  return packed_number(tile.c + row * shape.c_row_words(), column,
                       shape.accumulator().storage_bits);
}

// D[row][column] from the register `start`.
LOCKSTEP_HOST_DEVICE inline uint32_t tile_dot(const Rule& rule, const Shape& shape,
                                              const Tile& tile, int row, int column,
                                              uint32_t start) {
  const RowFactors a{tile.a + row * shape.row_words(), shape.k, shape.a, rule.tf32_input};
  const RowFactors b{tile.b + column * shape.row_words(), shape.k, shape.b, rule.tf32_input};
  IgnoreBlocks nobody;
  return block_chain(rule.block, shape.k, a, b,
                     encoding_of(shape.a).fraction_bits() + encoding_of(shape.b).fraction_bits(),
                     start, nobody);
}

// NaN as NaN: payloads are not modelled.
LOCKSTEP_HOST_DEVICE inline bool same_bits(uint32_t x, uint32_t y, const BlockEncoding& e) {
  return x == y || (e.is_nan(x) && e.is_nan(y));
}

}  // namespace lockstep::mma
