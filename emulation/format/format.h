// The numbers that a format holds.
// A format is a row of one table (format.cc): precision, exponent range, special values, overflow.
// Everything else (limits, ulp, neighbours) is derived from the row. format_name.cc reads names and
// suffixes (`fp8_e4m3+saturate`). Knows nothing of arrays or of fast rounding.
//
//   value = (-1)^sign * significand * 2^exponent,  significand in [1, 2) with p bits (implicit one
//   included), exponent in [emin, emax]; below 2^emin the subnormals are multiples of 2^(emin-p+1).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/format/rounding_rules.h"

namespace lockstep {

struct Format {
  std::string name;
  std::vector<std::string> aliases;
  int precision;      // p: significand bits, implicit bit included
  int emin, emax;     // exponents of the smallest normal and of the largest finite number
  int exponent_bits;  // field width; storage bits = 1 + exponent_bits + (p - 1)
  bool has_infinity;
  bool has_nan;
  // False: all zeros are positive, and the code of -0 is the one NaN ("fnuz").
  bool has_negative_zero = true;
  OverflowRule overflow;
  SubnormalRule subnormals = SubnormalRule::kKept;
  double max_finite;  // written out in the row: not every format fills its last binade
  std::string help;   // one line with the arithmetic of the limits
  std::string source;

  int storage_bits() const { return exponent_bits + precision; }
  double min_normal() const;       // 2^emin
  double min_subnormal() const;    // 2^(emin - p + 1); min_normal() where subnormals are flushed
  double unit_roundoff() const;    // 2^-p
  double machine_epsilon() const;  // 2^(1-p)
  bool has_subnormals() const { return subnormals == SubnormalRule::kKept; }
  // IEEE rules throughout: infinities, signed zeros, subnormals kept, overflow to infinity.
  bool is_ieee_like() const;
  // The machine's own types: a float or a double needs no rounding to them.
  bool is_fp32() const { return precision == 24 && exponent_bits == 8 && is_ieee_like(); }
  bool is_fp64() const { return precision == 53 && is_ieee_like(); }
  // Held in FP32 registers. Hardware ignores their low bits or rounds them away.
  bool is_tf32() const { return precision == 11 && exponent_bits == 8 && is_ieee_like(); }
};

// The named formats, fp64 first, in decreasing size.
std::span<const Format> formats();

// A format by name: NAME[+SUFFIX...]. NAME is a named format, an alias, or `e<E>m<M>` with E in
// 2..8 and M in 1..23 (IEEE rules); a SUFFIX is a row of format_suffixes(), at most one of each
// kind: `fp8_e4m3+saturate`, `fp16+flush_out`, `bf16+saturate+flush_in`. The object lives as long
// as the process. All spellings of one format give the same object. Its `name` lists the suffixes
// that change the format, overflow first.
// Throws: InputError with a did-you-mean.
const Format& find_format(std::string_view name);

// What follows '+' in a format's name. Exactly one of the two rules is set.
struct FormatSuffix {
  std::string_view name;
  std::optional<OverflowRule> overflow;
  std::optional<SubnormalRule> subnormals;
  std::string_view help, source;
};
std::span<const FormatSuffix> format_suffixes();
std::string_view to_string(OverflowRule rule);
std::string_view to_string(SubnormalRule rule);

// A warning to show with a format's name, or "": e.g. `e4m3` (IEEE, max 240) is not `fp8_e4m3`
// (OCP, max 448).
std::string format_hint(std::string_view name);

// The distance between neighbours of `format` in the binade of x. Below emin: the subnormal
// spacing, or min_normal if subnormals are flushed. Beyond max_finite: that of the last binade.
// Requires: x finite.
double ulp(double x, const Format& format);

// True if x is a value of the format, so that rounding does not change it. NaN: has_nan;
// infinity: has_infinity and no saturation; -0: has_negative_zero; a subnormal: not if flushed.
bool is_representable(double x, const Format& format);

// True if every value of `narrow` is a value of `wide`, so that the cast is exact.
bool contains(const Format& wide, const Format& narrow);

// The storage bits of a representable x, right-aligned: [sign | exponent field | fraction]. A NaN
// gives the format's quiet NaN. Throws: std::logic_error when x is not representable.
uint64_t encode(double x, const Format& format);
// The value of storage bits. Codes of flushed subnormals are zeros with their sign. Codes of
// infinities are infinities even if rounding saturates.
double decode(uint64_t bits, const Format& format);

}  // namespace lockstep
