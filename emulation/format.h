// Which numbers does a format hold?
// A format is a row of one table (format.cc): precision, exponent range, special values and what
// happens beyond them. Everything else (limits, ulp, neighbours) is derived from the row.
// Knows nothing of arrays or of how rounding is made fast.
//
//   value = (-1)^sign * significand * 2^exponent,  significand in [1, 2) with p bits (implicit one
//   included), exponent in [emin, emax]; below 2^emin the subnormals are multiples of 2^(emin-p+1).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// What a finite value beyond the largest finite number becomes.
enum class OverflowPolicy : uint8_t {
  kInfinity,  // IEEE 754-2019 §7.4: the rounding direction decides between infinity and max_finite
  kSaturate,  // max_finite with the value's sign
  kNan,       // OCP 8-bit formats, non-saturating conversion
};

struct Format {
  std::string name;
  std::vector<std::string> aliases;
  int precision;      // p: significand bits, implicit bit included
  int emin, emax;     // exponents of the smallest normal and of the largest finite number
  int exponent_bits;  // field width; storage bits = 1 + exponent_bits + (p - 1)
  bool has_infinity;
  bool has_nan;
  bool has_subnormals;
  OverflowPolicy overflow;
  double max_finite;  // written out in the row: not every format fills its last binade
  std::string help;   // one line with the arithmetic of the limits
  std::string source;

  int storage_bits() const { return exponent_bits + precision; }
  double min_normal() const;       // 2^emin
  double min_subnormal() const;    // 2^(emin - p + 1); min_normal() without subnormals
  double unit_roundoff() const;    // 2^-p
  double machine_epsilon() const;  // 2^(1-p)
  bool is_fp32() const { return precision == 24 && exponent_bits == 8; }
  bool is_fp64() const { return precision == 53; }
};

// The named formats, fp64 first, in decreasing precision.
std::span<const Format> formats();

// A named format, an alias, or `e<E>m<M>` with E in 2..8 and M in 1..23 (IEEE rules). The object
// lives as long as the process; the same name gives the same object.
// Throws: InputError with a did-you-mean.
const Format& find_format(std::string_view name);

// Advice worth showing beside a format's name, or "": e.g. `e4m3` (IEEE, max 240) is not
// `fp8_e4m3` (OCP, max 448).
std::string format_hint(std::string_view name);

// The distance between neighbours of `format` in the binade of x (the subnormal spacing below
// emin, that of the last binade beyond max_finite). Requires: x finite.
double ulp(double x, const Format& format);

// True when x is a value of the format (NaN: has_nan; infinity: has_infinity).
bool is_representable(double x, const Format& format);

// True when every value of `narrow` is one of `wide`, so that the cast is exact.
bool contains(const Format& wide, const Format& narrow);

// The storage bits of a representable x, right-aligned: [sign | exponent field | fraction]. A NaN
// gives the format's quiet NaN. Throws: std::logic_error when x is not representable.
uint64_t encode(double x, const Format& format);
double decode(uint64_t bits, const Format& format);

}  // namespace lockstep
