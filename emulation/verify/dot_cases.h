// The random cases of a sum of products.
// Uniform words seldom reach the places where rounding is decided; these cases cancel, underflow
// and overflow on purpose. Knows no unit.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/verify/bit_comparison.h"

namespace lockstep {

// Words to the floats they hold; 16-bit formats through a table.
class Decoder {
 public:
  explicit Decoder(const Format& format);
  float operator()(uint32_t bits) const {
    return values_.empty() ? std::bit_cast<float>(bits) : values_[bits];
  }

 private:
  std::vector<float> values_;
};

// The word of a number. Requires: the format holds the number.
uint32_t result_bits(double x, const Format& format);

// Any sign and fraction, exponent e; a subnormal when e is below the normal ones. Larger exponents
// than the format's count as its largest.
uint32_t with_exponent(CaseRandom& random, const Format& format, int e);

// The word at most two places from `bits`: for almost complete cancellation.
uint32_t near(CaseRandom& random, uint32_t bits);

// Fields: c, then a and b of each product. Factors and sum in their formats.
class DotCases {
 public:
  DotCases(const Format& factor, const Format& sum);

  // One case of c + sum of a[i] * b[i].
  void draw(CaseRandom& random, uint32_t* words, int products) const;

 private:
  enum class Style : uint32_t;

  uint32_t addend(CaseRandom& random, Style style) const;
  void draw_product(CaseRandom& random, Style style, uint32_t* words) const;

  const Format &factor_, &sum_;
  Decoder to_float_;
  std::vector<uint32_t> factor_edges_, sum_edges_;
};

}  // namespace lockstep
