// The model's result for one element of a tile D = A * B + C.
// A tile is one instruction's matrices in packed words. A rule is the accumulator's block with the
// necessary facts about the operands' encodings. Runs on the host and on the device, so that 10^8
// results are compared where they are computed.
#pragma once

#include <cstdint>

#include "emulation/accumulator/aligned_block_core.h"
#include "emulation/verify/nvidia/mma_instruction.h"
#include "emulation/verify/nvidia/mma_layout.h"

namespace lockstep::mma {

struct Rule {
  BlockSpec block;
};

// A: m rows of k, B: n columns of k, C: m rows of n.
struct Tile {
  const uint32_t* a;
  const uint32_t* b;
  const uint32_t* c;
};

// The factors of a row of A or a column of B; zeros beyond k.
struct RowFactors {
  const uint32_t* words;
  int k;
  Type type;
  BlockSpec block;

  LOCKSTEP_HOST_DEVICE BlockFactor operator()(int64_t i) const {
    uint32_t bits = 0;
    if (i < k) {
      bits = packed_number(words, static_cast<int>(i), bits_of(type));
      if (type == Type::kTf32) bits = tf32_register(bits, block.tf32_input);
    }
    const BlockFactor factor = decode_bits(bits, encoding_of(type));
    return block.factors_as_fp16 ? as_fp16(factor, encoding_of(type).fraction_bits()) : factor;
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
  const RowFactors a{tile.a + row * shape.row_words(), shape.k, shape.a, rule.block};
  const RowFactors b{tile.b + column * shape.row_words(), shape.k, shape.b, rule.block};
  const auto fraction_bits = [&](Type type) {
    return rule.block.factors_as_fp16
               ? register_encoding(BlockOutput::kFp16NearestEven).fraction_bits()
               : encoding_of(type).fraction_bits();
  };
  IgnoreBlocks nobody;
  return block_chain(rule.block, shape.k, a, b, fraction_bits(shape.a) + fraction_bits(shape.b),
                     start, nobody);
}

}  // namespace lockstep::mma
