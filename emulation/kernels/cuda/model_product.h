// Products of software lanes on a device.
// C = A B' under a declared accumulator, one call per element of C. Plain functions for the host
// and the GPU; every sum over k is the source of the host's definition (aligned_block_core.h,
// fast_round.h). Factors and sums are storage bits. Knows nothing of launches and copies.
#pragma once

#include <bit>
#include <cstdint>

#include "emulation/accumulator/aligned_block_core.h"
#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/cuda/checked_array.h"
#include "src/core/host_device.h"

namespace lockstep::cuda {

// Words of 1, 2 or 4 bytes.
struct Words {
  void* data = nullptr;
  int64_t count = 0;
  int bytes = 4;

  LOCKSTEP_HOST_DEVICE uint32_t load(int64_t i) const {
    if (bytes == 1) return array<uint8_t>()[i];
    if (bytes == 2) return array<uint16_t>()[i];
    return array<uint32_t>()[i];
  }
  LOCKSTEP_HOST_DEVICE void store(int64_t i, uint32_t word) const {
    if (bytes == 1) {
      array<uint8_t>()[i] = static_cast<uint8_t>(word);
    } else if (bytes == 2) {
      array<uint16_t>()[i] = static_cast<uint16_t>(word);
    } else {
      array<uint32_t>()[i] = word;
    }
  }

 private:
  template <typename Word>
  LOCKSTEP_HOST_DEVICE CheckedArray<Word> array() const {
    return {static_cast<Word*>(data), count};
  }
};

// A's row m, or B's column n, is a line of k factors.
struct FactorLines {
  Words words;
  int64_t line_step = 0, k_step = 0;  // in words

  LOCKSTEP_HOST_DEVICE uint32_t operator()(int64_t line, int64_t k) const {
    return words.load(line * line_step + k * k_step);
  }
};

// Shapes: A m lines, B n lines, C (M,N) dense, events (M,N) dense or none.
struct ProductArrays {
  int64_t m = 0, n = 0, k = 0;
  FactorLines a, b;
  Words c;
  bool start_from_c = false;     // false: from +0
  CheckedArray<uint8_t> events;  // sticky AccumulatorEvents, OR-ed into

  LOCKSTEP_HOST_DEVICE int64_t count() const { return m * n; }
  LOCKSTEP_HOST_DEVICE uint32_t start(int64_t i) const { return start_from_c ? c.load(i) : 0; }
};

// Sums of a tensor core. C holds registers: FP32, or FP16 in 2 bytes.
struct BlockProduct {
  ProductArrays arrays;
  BlockSpec block;
  BlockEncoding a, b;

  // How many times a launch calls it, with 0, 1, ...
  LOCKSTEP_HOST_DEVICE int64_t count() const { return arrays.count(); }
  LOCKSTEP_HOST_DEVICE void operator()(int64_t i) const {
    const LineFactors x{arrays.a, a, block.tf32_input, i / arrays.n, arrays.k};
    const LineFactors y{arrays.b, b, block.tf32_input, i % arrays.n, arrays.k};
    const int fraction_bits = a.fraction_bits() + b.fraction_bits();
    if (arrays.events.data == nullptr) {
      IgnoreBlocks nobody;
      arrays.c.store(i, block_chain(block, arrays.k, x, y, fraction_bits, arrays.start(i), nobody));
    } else {
      BlockEvents events{.registers = register_encoding(block.output)};
      arrays.c.store(i, block_chain(block, arrays.k, x, y, fraction_bits, arrays.start(i), events));
      arrays.events[i] |= events.events;
    }
  }

 private:
  struct LineFactors {
    const FactorLines& lines;
    const BlockEncoding& encoding;
    Tf32Input tf32_input;
    int64_t line, k;

    LOCKSTEP_HOST_DEVICE BlockFactor operator()(int64_t i) const {
      uint32_t bits = i < k ? lines(line, i) : 0;
      if (encoding.ignored_bits != 0) bits = tf32_register(bits, tf32_input);
      return decode_bits(bits, encoding);
    }
  };
};

// Fused chains round(acc + a b). Factors and C are FP32 words.
struct ChainProduct {
  ProductArrays arrays;
  FloatChain chain;

  LOCKSTEP_HOST_DEVICE int64_t count() const { return arrays.count(); }
  LOCKSTEP_HOST_DEVICE void operator()(int64_t i) const {
    uint8_t* events = arrays.events.data == nullptr ? nullptr : &arrays.events[i];
    double sum = std::bit_cast<float>(arrays.start(i));
    for (int64_t k = 0; k < arrays.k; ++k) {
      sum = chain.step(sum, std::bit_cast<float>(arrays.a(i / arrays.n, k)),
                       std::bit_cast<float>(arrays.b(i % arrays.n, k)), events);
    }
    arrays.c.store(i, std::bit_cast<uint32_t>(static_cast<float>(sum)));
  }
};

}  // namespace lockstep::cuda
