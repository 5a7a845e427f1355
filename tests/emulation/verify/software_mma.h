// A device that runs matrix instructions in software, operand by operand as the PTX ISA lists them.
// It reads what mma_layout.h puts into registers and shared memory by the ISA's tables, multiplies
// with a model, and returns the results by the same tables. Tests only.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "emulation/verify/nvidia/mma_device.h"
#include "emulation/verify/nvidia/nvidia_model.h"

namespace lockstep {

// Row and column of a matrix element.
struct ElementPlace {
  int row, column;
};

// The PTX ISA's tables for element a<i>, b<i>, c<i> of lane `lane`: sections "Matrix Fragments for
// mma.m16n8k4", "... k8", "... k16", "... k32", shape by shape. B's place is (k, column).
inline ElementPlace isa_a(const mma::Shape& shape, int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  switch (mma::bits_of(shape.a) * 100 + shape.k) {
    case 1616:  // .f16/.bf16 m16n8k16
      return {(i < 2 || (i >= 4 && i < 6)) ? group : group + 8,
              thread * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
    case 1608:  // .f16/.bf16 m16n8k8
      return {i < 2 ? group : group + 8, thread * 2 + (i & 1)};
    case 3208:  // .tf32 m16n8k8
      return {(i == 0 || i == 2) ? group : group + 8, i < 2 ? thread : thread + 4};
    case 3204:  // .tf32 m16n8k4
      return {i == 0 ? group : group + 8, thread};
    default:  // .e4m3/.e5m2 m16n8k32
      return {(i < 4 || (i >= 8 && i < 12)) ? group : group + 8,
              thread * 4 + (i & 3) + (i >= 8 ? 16 : 0)};
  }
}
inline ElementPlace isa_b(const mma::Shape& shape, int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  switch (mma::bits_of(shape.a) * 100 + shape.k) {
    case 1616:
      return {thread * 2 + (i & 1) + (i >= 2 ? 8 : 0), group};
    case 1608:
      return {thread * 2 + i, group};
    case 3208:
      return {i == 0 ? thread : thread + 4, group};
    case 3204:
      return {thread, group};
    default:
      return {thread * 4 + (i & 3) + (i >= 4 ? 16 : 0), group};
  }
}
inline ElementPlace isa_c(int lane, int i) {
  return {i < 2 ? lane >> 2 : (lane >> 2) + 8, lane % 4 * 2 + (i & 1)};
}

inline void put_number(uint32_t* words, int index, int bits, uint32_t value) {
  const int per_word = mma::kWordBits / bits;
  words[index / per_word] |= value << (index % per_word * bits);
}

class SoftwareMma : public mma::Device {
 public:
  // The silicon's model of an instruction.
  using Silicon = std::function<NvidiaModel(const mma::Instruction&)>;
  SoftwareMma(int capability, Silicon silicon)
      : capability_(capability), silicon_(std::move(silicon)) {}

  std::string description() const override { return "software"; }
  int capability() const override { return capability_; }
  bool misplaces_a = false;  // a fault: wgmma reads the two core matrices of a row of A exchanged

  std::vector<uint32_t> multiply(const mma::Instruction& instruction, bool from_zero,
                                 const mma::TileBatch& tiles) override {
    const mma::Rule rule = silicon_(instruction).rule;
    const mma::Shape& shape = tiles.shape;
    std::vector<uint32_t> d(tiles.c.size());
    for (int64_t t = 0; t < tiles.count; ++t) {
      const mma::TileBatch seen = as_the_unit_sees_it(instruction, tiles, t);
      std::vector<uint32_t> results(static_cast<size_t>(shape.outputs()));
      for (int place = 0; place < shape.outputs(); ++place) {
        const int row = place / shape.n, column = place % shape.n;
        const uint32_t start = from_zero ? 0 : mma::tile_addend(shape, seen.tile(0), row, column);
        results[place] = mma::tile_dot(rule, shape, seen.tile(0), row, column, start);
      }
      hand_out(instruction, results, d.data() + t * shape.c_words());
    }
    return d;
  }

  mma::Verdict compare(const mma::Comparison& comparison) override {
    const mma::Shape& shape = comparison.instruction.shape;
    mma::Verdict verdict;
    verdict.mismatches.resize(comparison.rules.size());
    const mma::TileBatch tiles =
        make_tiles(comparison.stream, comparison.rules[0], shape, comparison.first_tile,
                   static_cast<int64_t>(comparison.tile_count));
    const auto d = multiply(comparison.instruction, comparison.from_zero, tiles);
    for (int64_t t = 0; t < tiles.count; ++t) {
      for (int place = 0; place < shape.outputs(); ++place) {
        const int row = place / shape.n, column = place % shape.n;
        const uint32_t start =
            comparison.from_zero ? 0 : mma::tile_addend(shape, tiles.tile(t), row, column);
        const uint32_t result =
            mma::packed_number(d.data() + t * shape.c_words() + row * shape.c_row_words(), column,
                               shape.accumulator().storage_bits);
        for (size_t r = 0; r < comparison.rules.size(); ++r) {
          const uint32_t expected =
              mma::tile_dot(comparison.rules[r], shape, tiles.tile(t), row, column, start);
          if (expected == result) continue;
          ++verdict.mismatches[r];
          if (r != 0) continue;
          const uint64_t number = (comparison.first_tile + static_cast<uint64_t>(t)) *
                                      static_cast<uint64_t>(shape.outputs()) +
                                  static_cast<uint64_t>(place);
          verdict.first_mismatch = std::min(verdict.first_mismatch, number);
        }
      }
    }
    return verdict;
  }

 private:
  // Goes through registers or shared memory, and back by the ISA's rules.
  mma::TileBatch as_the_unit_sees_it(const mma::Instruction& instruction,
                                     const mma::TileBatch& tiles, int64_t t) const {
    const mma::Shape& shape = tiles.shape;
    const mma::Tile tile = tiles.tile(t);
    mma::TileBatch seen(shape, 1);
    if (instruction.family == mma::Family::kWgmma) {
      read_shared(shape, tile.a, shape.m, misplaces_a, seen.a);
      read_shared(shape, tile.b, shape.n, false, seen.b);
    } else if (instruction.family == mma::Family::kMmaSync) {
      read_registers(shape, tile, seen);
    } else {  // WMMA's own loads: row-major A, column-major B
      std::copy_n(tile.a, seen.a.size(), seen.a.begin());
      std::copy_n(tile.b, seen.b.size(), seen.b.begin());
    }
    if (instruction.family == mma::Family::kWmma) {
      std::copy_n(tile.c, seen.c.size(), seen.c.begin());
      return seen;
    }
    constexpr int kWarpRows = 16;
    for (int warp = 0; warp < shape.m / kWarpRows; ++warp) {
      for (int lane = 0; lane < mma::kWarpLanes; ++lane) {
        for (int i = 0; i < 4; ++i) {
          const auto [row, column] = isa_c(lane, i);
          put_number(seen.c.data() + (warp * kWarpRows + row) * shape.c_row_words(), column,
                     shape.accumulator().storage_bits,
                     accumulator_element(shape, tile.c, warp * kWarpRows, lane, i));
        }
      }
    }
    return seen;
  }

  // Element c<i> of the registers that the kernels load.
  static uint32_t accumulator_element(const mma::Shape& shape, const uint32_t* c, int first_row,
                                      int lane, int i) {
    const int reg = shape.halves ? i / 2 : i;
    const mma::WordPlace at = mma::c_word(lane, reg, shape.halves);
    const uint32_t word = c[(first_row + at.row) * shape.c_row_words() + at.word];
    return shape.halves ? word >> (i % 2 * 16) & 0xffff : word;
  }

  static void read_registers(const mma::Shape& shape, const mma::Tile& tile, mma::TileBatch& seen) {
    const int bits = mma::bits_of(shape.a), per_word = mma::kWordBits / bits;
    const int b_registers = shape.row_words() / mma::kGroupWords;
    for (int lane = 0; lane < mma::kWarpLanes; ++lane) {
      for (int reg = 0; reg < 2 * b_registers; ++reg) {
        const mma::WordPlace at = mma::a_word(lane, reg);
        const uint32_t word = tile.a[at.row * shape.row_words() + at.word];
        for (int j = 0; j < per_word; ++j) {
          const auto [row, k] = isa_a(shape, lane, reg * per_word + j);
          put_number(seen.a.data() + row * shape.row_words(), k, bits,
                     mma::packed_number(&word, j, bits));
        }
      }
      for (int reg = 0; reg < b_registers; ++reg) {
        const mma::WordPlace at = mma::b_word(lane, reg);
        const uint32_t word = tile.b[at.row * shape.row_words() + at.word];
        for (int j = 0; j < per_word; ++j) {
          const auto [k, column] = isa_b(shape, lane, reg * per_word + j);
          put_number(seen.b.data() + column * shape.row_words(), k, bits,
                     mma::packed_number(&word, j, bits));
        }
      }
    }
  }

  // Shared memory in the layout of a descriptor: 8 rows of 16 bytes per core matrix, the leading
  // offset from one 16 bytes of k to the next, the stride offset from 8 rows to the next 8.
  static void read_shared(const mma::Shape& shape, const uint32_t* matrix, int rows, bool exchanged,
                          std::vector<uint32_t>& seen) {
    std::vector<uint32_t> shared(static_cast<size_t>(rows * shape.row_words()));
    for (int row = 0; row < rows; ++row) {
      for (int w = 0; w < shape.row_words(); ++w) {
        shared[mma::core_matrix_word(row, w)] = matrix[row * shape.row_words() + w];
      }
    }
    const uint64_t descriptor = mma::matrix_descriptor(0);
    const int leading = static_cast<int>(descriptor >> 16 & 0x3fff) * 16;
    const int stride = static_cast<int>(descriptor >> 32 & 0x3fff) * 16;
    const int row_bytes = shape.row_words() * 4;
    for (int row = 0; row < rows; ++row) {
      for (int byte = 0; byte < row_bytes; ++byte) {
        const int k_byte = exchanged ? (byte + 16) % row_bytes : byte;
        const int address = row / 8 * stride + k_byte / 16 * leading + row % 8 * 16 + k_byte % 16;
        const uint32_t value = shared[address / 4] >> (address % 4 * 8) & 0xff;
        seen[row * shape.row_words() + byte / 4] |= value << (byte % 4 * 8);
      }
    }
  }

  static void hand_out(const mma::Instruction& instruction, const std::vector<uint32_t>& results,
                       uint32_t* d) {
    const mma::Shape& shape = instruction.shape;
    const int bits = shape.accumulator().storage_bits;
    if (instruction.family == mma::Family::kWmma) {
      for (int place = 0; place < shape.outputs(); ++place) {
        put_number(d + place / shape.n * shape.c_row_words(), place % shape.n, bits,
                   results[place]);
      }
      return;
    }
    constexpr int kWarpRows = 16;
    for (int warp = 0; warp < shape.m / kWarpRows; ++warp) {
      for (int lane = 0; lane < mma::kWarpLanes; ++lane) {
        for (int i = 0; i < 4; ++i) {
          const auto [row, column] = isa_c(lane, i);
          const uint32_t value = results[(warp * kWarpRows + row) * shape.n + column];
          const int reg = shape.halves ? i / 2 : i;
          const mma::WordPlace at = mma::c_word(lane, reg, shape.halves);
          uint32_t& word = d[(warp * kWarpRows + at.row) * shape.c_row_words() + at.word];
          word |= shape.halves ? value << (i % 2 * 16) : value;
        }
      }
    }
  }

  int capability_;
  Silicon silicon_;
};

}  // namespace lockstep
