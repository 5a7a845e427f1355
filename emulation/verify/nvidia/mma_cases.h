// The operands on which a matrix instruction is compared with its model.
// Tiles are drawn from counters: a word depends only on the seed, the tile's number and its place.
// So host and device make the same tiles, and a mismatch can be reproduced. Every tile has a
// pattern, because uniform bits almost never cancel, underflow or meet a tie.
// Knows nothing of how an instruction is run.
#pragma once

#include <cstdint>

#include "emulation/verify/nvidia/mma_tile.h"

namespace lockstep::mma {

enum class Pattern : uint8_t {
  kAnyBits,       // every code equally likely: many infinities and NaNs in small formats
  kNearOne,       // exponents -1 to 1
  kWindow,        // exponents within 0..15 of a drawn one
  kSubnormal,     // exponent fields 0 to 2
  kCancelPairs,   // a[2i+1] = a[2i], b[2i+1] = -b[2i], one in four a last place off
  kCancelAddend,  // c = -(the model's sum without c), up to three places off
  kSpecials,      // near one, one in sixteen a zero, infinity, NaN, largest or smallest number
  kZeroProducts,  // one product of small factors, otherwise zeros times large factors; c small. Of
                  // FP32 sums every third tile: zero products alone, c about the smallest number
  kUnderflow,     // products about the smallest number of the sum; c mostly zero
  kFloorTies,     // one power of two at half or all of the smallest number of the sum, others far
                  // below; c zero
  kOverflow,      // products about the largest number of the sum
  kIntegers,      // -7 to 7: every model gives the exact result; for layouts, not mixed in
};
inline constexpr int kMixedPatterns = static_cast<int>(Pattern::kIntegers);  // all but the last

struct CaseStream {
  uint64_t seed = 1;
  bool only_one = false;  // `pattern` in every tile, otherwise all of the mixed ones in turn
  Pattern pattern = Pattern::kAnyBits;
};

// 64 random bits from two counters. Source: Steele, Lea, Flood, "Fast splittable pseudorandom
// number generators", OOPSLA 2014 (the finaliser of SplitMix64), twice.
LOCKSTEP_HOST_DEVICE inline uint64_t mixed_bits(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
LOCKSTEP_HOST_DEVICE inline uint64_t case_bits(uint64_t seed, uint64_t tile, uint64_t place) {
  constexpr uint64_t kWeyl = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
  return mixed_bits(mixed_bits(mixed_bits(seed + kWeyl) + tile * kWeyl) + (place + 1) * kWeyl);
}

// Small random numbers out of one draw.
class Draw {
 public:
  LOCKSTEP_HOST_DEVICE explicit Draw(uint64_t bits) : bits_(bits) {}
  // [0, limit), limit <= 256. Uses sixteen bits at a time, then mixes again.
  LOCKSTEP_HOST_DEVICE int below(int limit) {
    if (left_ == 0) bits_ = mixed_bits(bits_ + 1), left_ = 4;
    --left_;
    const int value = static_cast<int>((bits_ & 0xffff) * static_cast<uint64_t>(limit) >> 16);
    bits_ = bits_ >> 16 | bits_ << 48;
    return value;
  }
  LOCKSTEP_HOST_DEVICE int between(int low, int high) { return low + below(high - low + 1); }
  LOCKSTEP_HOST_DEVICE uint32_t word() {
    left_ = 0;
    return static_cast<uint32_t>(mixed_bits(bits_ ^ 0x5555) >> 32);
  }

 private:
  uint64_t bits_;
  int left_ = 4;
};

// How codes are drawn. TF32 registers are drawn like FP32 ones, so that their ignored bits are
// random, too.
LOCKSTEP_HOST_DEVICE constexpr BlockEncoding drawn_encoding(Type type) {
  return type == Type::kTf32 ? register_encoding(BlockOutput::kFp32TowardZero) : encoding_of(type);
}

LOCKSTEP_HOST_DEVICE constexpr int largest_exponent(const BlockEncoding& e) {
  const int last_field = static_cast<int>(e.field_mask()) - (e.has_infinity ? 1 : 0);
  return last_field - 1 + e.emin;
}

// Any fraction with this sign and exponent; below emin a subnormal, above the largest exponent a
// number with the largest.
LOCKSTEP_HOST_DEVICE inline uint32_t code_with_exponent(const BlockEncoding& e, bool negative,
                                                        int exponent, uint32_t random) {
  const int largest = largest_exponent(e);
  if (exponent > largest) exponent = largest;
  const uint32_t field = exponent < e.emin ? 0 : static_cast<uint32_t>(exponent - e.emin + 1);
  uint32_t fraction = random & e.fraction_mask();
  if (field == e.field_mask() && fraction == e.fraction_mask()) fraction = 0;  // E4M3's NaN
  return (negative ? e.sign_bit() : 0) | field << e.fraction_bits() | fraction;
}

// Requires: |value| < 2^precision.
LOCKSTEP_HOST_DEVICE inline uint32_t code_of_integer(const BlockEncoding& e, int value) {
  if (value == 0) return 0;
  const uint32_t magnitude = static_cast<uint32_t>(value < 0 ? -value : value);
  const int exponent = floor_log2(magnitude);
  const uint32_t fraction = magnitude << (e.fraction_bits() - exponent) & e.fraction_mask();
  return code_with_exponent(e, value < 0, exponent, fraction);
}

LOCKSTEP_HOST_DEVICE inline uint32_t special_code(const BlockEncoding& e, Draw& draw) {
  const uint32_t sign = draw.below(2) != 0 ? e.sign_bit() : 0;
  const uint32_t nan = e.infinity() | e.fraction_mask();
  switch (draw.below(6)) {
    case 0:
      return sign;
    case 1:
      return sign | (e.has_infinity ? e.infinity() : nan);
    case 2:
      return sign | nan;
    case 3:
      return sign | (nan - (e.has_infinity ? e.fraction_mask() + 1 : 1));  // the largest number
    case 4:
      return sign | 1;
    default:
      return sign | 1u << e.fraction_bits();  // the smallest normal number
  }
}

// Values that all numbers of a tile share.
struct TileDesign {
  Pattern pattern;
  int a_exponent, b_exponent;  // centres
  int spread;
  int lone_k;  // of kZeroProducts and kFloorTies; -1: none
};

LOCKSTEP_HOST_DEVICE inline TileDesign design_tile(const CaseStream& stream, const Shape& shape,
                                                   uint64_t tile) {
  constexpr int kLongestSpread = 16, kDesignPlace = 0;
  Draw draw(case_bits(stream.seed, tile, kDesignPlace));
  TileDesign design;
  design.pattern = stream.only_one
                       ? stream.pattern
                       : static_cast<Pattern>(tile % static_cast<uint64_t>(kMixedPatterns));
  const BlockEncoding a = drawn_encoding(shape.a), b = drawn_encoding(shape.b);
  const BlockEncoding c = shape.accumulator();
  const int a_last = largest_exponent(a), b_last = largest_exponent(b);
  design.a_exponent = draw.between(a.emin, a_last);
  design.b_exponent = draw.between(b.emin, b_last);
  design.spread = draw.below(kLongestSpread);
  design.lone_k = draw.below(shape.k);
  if (design.pattern == Pattern::kZeroProducts && !shape.halves && draw.below(3) == 0) {
    design.lone_k = -1;
  }
  const bool ties = design.pattern == Pattern::kFloorTies;
  if (ties || design.pattern == Pattern::kUnderflow || design.pattern == Pattern::kOverflow) {
    // a_exponent + b_exponent about `target`, as far as the formats allow.
    const int smallest = c.emin - c.fraction_bits();
    const int target = ties                                    ? smallest - draw.below(2)
                       : design.pattern == Pattern::kUnderflow ? smallest + draw.between(-12, 12)
                                                               : -c.emin + draw.between(-4, 4);
    const int low = target - b_last > a.emin ? target - b_last : a.emin;
    const int high = target - b.emin < a_last ? target - b.emin : a_last;
    design.a_exponent = low <= high ? draw.between(low, high) : (low > a_last ? a_last : a.emin);
    design.b_exponent = target - design.a_exponent;
    design.spread = draw.below(4);
  }
  return design;
}

// The matrix of a place, so that no two draws share their bits.
enum class Matrix : uint64_t { kA = 1, kB = 2, kC = 3 };
LOCKSTEP_HOST_DEVICE constexpr uint64_t case_place(Matrix matrix, int row, int column) {
  return static_cast<uint64_t>(matrix) << 32 | static_cast<uint64_t>(row) << 16 |
         static_cast<uint64_t>(column);
}

// Number k of a row of A or of a column of B.
LOCKSTEP_HOST_DEVICE inline uint32_t case_factor(const CaseStream& stream, const TileDesign& design,
                                                 const Shape& shape, uint64_t tile, Matrix matrix,
                                                 int row, int k) {
  const bool is_b = matrix == Matrix::kB;
  const BlockEncoding e = drawn_encoding(is_b ? shape.b : shape.a);
  const bool in_pair = design.pattern == Pattern::kCancelPairs;
  // Both numbers of a pair come from the same draw.
  Draw draw(case_bits(stream.seed, tile, case_place(matrix, row, in_pair ? k / 2 * 2 : k)));
  const uint32_t word = draw.word();
  const bool negative = draw.below(2) != 0;
  const int centre = is_b ? design.b_exponent : design.a_exponent;
  switch (design.pattern) {
    case Pattern::kAnyBits:
      return word & (e.sign_bit() | (e.sign_bit() - 1));
    case Pattern::kNearOne:
    case Pattern::kCancelAddend:
      return code_with_exponent(e, negative, draw.between(-1, 1), word);
    case Pattern::kWindow:
      return code_with_exponent(e, negative, centre + draw.between(-design.spread, design.spread),
                                word);
    case Pattern::kSubnormal:
      return code_with_exponent(e, negative, e.emin + draw.between(-1, 1), word);
    case Pattern::kCancelPairs: {
      const uint32_t code = code_with_exponent(
          e, negative, draw.between(-design.spread / 2, design.spread / 2), word);
      const bool second = k % 2 != 0;
      if (is_b) return second ? code ^ e.sign_bit() : code;
      const bool off = second && draw.below(4) == 0;
      // The last significant place; no number of this pattern is next to a special one.
      return off ? code ^ uint32_t { 1 } << (shape.a == Type::kTf32 ? 13 : 0) : code;
    }
    case Pattern::kSpecials:
      if (draw.below(16) == 0) return special_code(e, draw);
      return code_with_exponent(e, negative, draw.between(-1, 1), word);
    case Pattern::kZeroProducts:
      if (k == design.lone_k) return code_with_exponent(e, negative, draw.between(-12, -4), word);
      if (!is_b) return negative ? e.sign_bit() : 0;
      return code_with_exponent(e, negative, largest_exponent(e) - draw.below(4), word);
    case Pattern::kFloorTies:
      if (k == design.lone_k) return code_with_exponent(e, false, centre, 0);
      if (!is_b && draw.below(2) == 0) return 0;
      return code_with_exponent(e, negative, centre - draw.between(0, 13), word);
    case Pattern::kUnderflow:
    case Pattern::kOverflow:
      return code_with_exponent(e, negative, centre + draw.between(-design.spread, design.spread),
                                word);
    default:
      return code_of_integer(e, draw.between(-7, 7));
  }
}

// c of one output, before kCancelAddend sets it.
LOCKSTEP_HOST_DEVICE inline uint32_t case_addend(const CaseStream& stream, const TileDesign& design,
                                                 const Shape& shape, uint64_t tile, int row,
                                                 int column) {
  const BlockEncoding e = shape.accumulator();
  Draw draw(case_bits(stream.seed, tile, case_place(Matrix::kC, row, column)));
  const uint32_t word = draw.word();
  const bool negative = draw.below(2) != 0;
  const uint32_t zero = negative ? e.sign_bit() : 0;
  const int products = design.a_exponent + design.b_exponent;
  switch (design.pattern) {
    case Pattern::kAnyBits:
      return word & (e.sign_bit() | (e.sign_bit() - 1));
    case Pattern::kSpecials:
      if (draw.below(16) == 0) return special_code(e, draw);
      return code_with_exponent(e, negative, draw.between(-1, 4), word);
    case Pattern::kSubnormal:
      if (draw.below(2) == 0) return zero;
      return code_with_exponent(e, negative, e.emin + draw.between(-1, 1), word);
    case Pattern::kUnderflow:
      if (draw.below(4) != 0) return zero;
      return code_with_exponent(e, negative, e.emin + draw.between(-1, 1), word);
    case Pattern::kFloorTies:
      return zero;
    case Pattern::kOverflow:
      return code_with_exponent(e, negative, -e.emin - draw.below(4), word);
    case Pattern::kZeroProducts:
      if (design.lone_k < 0) {
        return code_with_exponent(e, negative, e.emin + draw.between(0, 24), word);
      }
      if (draw.below(3) == 0) return zero;
      return code_with_exponent(e, negative, draw.between(-24, -6), word);
    case Pattern::kWindow:
      if (draw.below(4) == 0) return zero;
      return code_with_exponent(e, negative, products + draw.between(-28, 28), word);
    case Pattern::kIntegers:
      return code_of_integer(e, draw.between(-7, 7));
    default:
      if (draw.below(4) == 0) return zero;
      return code_with_exponent(e, negative, draw.between(-28, 4), word);
  }
}

// The addend that cancels `sum` except for up to three places. Not for infinities and NaNs.
LOCKSTEP_HOST_DEVICE inline uint32_t cancelling_addend(const BlockEncoding& e, uint32_t sum,
                                                       uint64_t random) {
  if ((sum & e.infinity()) == e.infinity()) return 0;
  Draw draw(random);
  return (sum ^ e.sign_bit()) ^ static_cast<uint32_t>(draw.below(4));
}

// Word `index` of a matrix of tile `tile`, several numbers packed.
LOCKSTEP_HOST_DEVICE inline uint32_t case_word(const CaseStream& stream, const TileDesign& design,
                                               const Shape& shape, uint64_t tile, Matrix matrix,
                                               int index) {
  const bool is_c = matrix == Matrix::kC;
  const int row_words = is_c ? shape.c_row_words() : shape.row_words();
  const int bits =
      is_c ? shape.accumulator().storage_bits : bits_of(matrix == Matrix::kB ? shape.b : shape.a);
  const int per_word = kWordBits / bits, row = index / row_words;
  uint32_t word = 0;
  for (int i = 0; i < per_word; ++i) {
    const int column = index % row_words * per_word + i;
    const uint32_t code = is_c ? case_addend(stream, design, shape, tile, row, column)
                               : case_factor(stream, design, shape, tile, matrix, row, column);
    word |= code << (i * bits);
  }
  return word;
}

// Word `index` of C of a kCancelAddend tile whose A and B are made.
LOCKSTEP_HOST_DEVICE inline uint32_t cancelling_word(const CaseStream& stream, const Rule& rule,
                                                     const Shape& shape, const Tile& tile,
                                                     uint64_t number, int index) {
  const BlockEncoding e = shape.accumulator();
  const int per_word = kWordBits / e.storage_bits, row = index / shape.c_row_words();
  uint32_t word = 0;
  for (int i = 0; i < per_word; ++i) {
    const int column = index % shape.c_row_words() * per_word + i;
    const uint32_t sum = tile_dot(rule, shape, tile, row, column, 0);
    const uint64_t random = case_bits(stream.seed, number, case_place(Matrix::kC, row, column));
    word |= cancelling_addend(e, sum, random) << (i * e.storage_bits);
  }
  return word;
}

}  // namespace lockstep::mma
