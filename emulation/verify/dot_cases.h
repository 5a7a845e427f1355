// What are the random cases of a sum of products like?
// Words of any pattern seldom meet where rounding is decided; these cases cancel, underflow and
// overflow on purpose. Knows no unit.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/verify/bit_comparison.h"

namespace lockstep {

// Words to the floats they hold; formats of 16 bits through a table.
class Decoder {
 public:
  explicit Decoder(const Format& format);
  float operator()(uint32_t bits) const {
    return values_.empty() ? std::bit_cast<float>(bits) : values_[bits];
  }

 private:
  std::vector<float> values_;
};

// The word of a number in the format, which holds it.
uint32_t result_bits(double x, const Format& format);

// Any sign and fraction, exponent e; a subnormal when e is below the normal ones. Exponents beyond
// the format's count as its last.
uint32_t with_exponent(CaseRandom& random, const Format& format, int e);

// The word beside `bits` by at most two places: where cancellation is all but complete.
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
  void product(CaseRandom& random, Style style, uint32_t* words) const;

  const Format &factor_, &sum_;
  Decoder to_float_;
  std::vector<uint32_t> factor_edges_, sum_edges_;
};

}  // namespace lockstep
