// The numbers that a block format holds.
// A block format stores `block_size` neighbouring elements in a narrow format and one scale for all
// of them. A row of one table (block_format.cc) gives element, block size and scale. Also here: the
// scale of one block and the rounding of one element in it, the definition of every block kernel.
// Knows nothing of arrays (emulation/kernels/block_quantize.h).
//
//   | scale | element 0 | element 1 | ... | element k-1 |      value_i = scale * element_i
//
//   e8m0 scale   EEEEEEEE   2^(E - 127), E in 0..254; 0xFF is NaN; no sign, no zero
//   e4m3 scale   0EEEEMMM   fp8_e4m3 without sign, times one FP32 scale of the whole tensor
//
// A block that holds a NaN or an infinity has the NaN scale, and all of its values are NaN.
// Source: OCP Microscaling Formats (MX) Specification 1.0, §5 and §6.3 (which leaves the conversion
// of NaN and infinity to the implementation; torchao and cvt.ue8m0 convert them this way); NVIDIA,
// "Pretraining Large Language Models with NVFP4", arXiv 2509.25149, appendix on quantization.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/format/rounding.h"

namespace lockstep {

// How the power-of-two scale follows from the block's largest magnitude, amax = f * 2^E with f in
// [1, 2). The scale is 2^(e - emax), emax the exponent of the element's largest number, and e:
enum class ScaleRule : uint8_t {
  kFloor,  // E
  kCeil,   // E, E + 1 if f > 1
  kRceil,  // E, E + 1 if f > f_max, the f of the element's largest number: the least e that fits
  kRound,  // E of amax rounded to the element's precision, ties away from zero
};

struct ScaleRuleInfo {
  ScaleRule rule;
  std::string_view name;  // the suffix of a block format's name: "mxfp8_e4m3+rceil"
  std::string_view help;
  std::string_view source;
};
std::span<const ScaleRuleInfo> scale_rules();
std::string_view to_string(ScaleRule rule);

enum class ScaleFormat : uint8_t {
  kE8m0,  // a power of two, by a ScaleRule
  kE4m3,  // amax / max_finite to nearest even, relative to the tensor's scale
};

struct BlockFormat {
  std::string name;  // with the suffixes that differ from the row's own choice
  std::vector<std::string> aliases;
  const Format* element;
  int block_size;
  ScaleFormat scale;
  ScaleRule rule;  // kE8m0 only
  std::string help;
  std::string source;

  double bits_per_element() const;  // an element's share of the scale included
};

// The named block formats.
std::span<const BlockFormat> block_formats();

// A named block format or an alias, then suffixes in any order: a scale rule ("+ceil") and the
// suffixes that find_format reads after the element's name ("+nan"). The object lives as long as
// the process. Throws: InputError with a did-you-mean.
const BlockFormat& find_block_format(std::string_view name);
// True when the part of `name` before a '+' names a block format.
bool names_block_format(std::string_view name);

// The scale of the whole tensor. kE8m0: 1. kE4m3: amax / (448 * max_finite) in T's arithmetic, so
// that the largest block scale is the largest e4m3 number; 1 for amax = 0.
// Requires: amax, over finite elements, is finite.
template <typename T>
T tensor_scale_of(T amax, const BlockFormat& format);

// A scale rule as arithmetic on bits: with this added to the bits of amax, the exponent field of
// the sum is that of 2^e. Bits: uint32_t for floats, uint64_t for doubles.
//   floor 0   ceil all fraction bits   rceil all but those of f_max   round half an element's place
template <typename Bits>
Bits scale_rule_addend(const BlockFormat& format);

// The scale code of a block. amax: the largest magnitude in it, NaN if it holds a NaN or infinity.
//   kE8m0   e - emax + 127, clamped to 0..254; an all-zero block has code 0
//   kE4m3   encode(round((amax / max_finite) / tensor_scale)), both quotients rounded to T, the
//           rounding to nearest even and saturating at 448; it may be zero
template <typename T>
uint8_t scale_code(T amax, T tensor_scale, const BlockFormat& format);

// The number that a scale code means, without the tensor's scale: 2^(code - 127) or an e4m3 value.
double scale_value(uint8_t code, const BlockFormat& format);

// The factor s of a block's elements: scale_value(code), times the tensor's scale in T's arithmetic
// if the format has one. NaN for a NaN block; 0 only with e4m3 scales.
template <typename T>
T block_scale(uint8_t code, T tensor_scale, const BlockFormat& format);

// An element of a block with the scale s: the number stored for x, and its value.
//   kE8m0   element = round(x / s), the quotient exact (floats; doubles while it is a double)
//   kE4m3   element = round(x / s), the quotient rounded to T; s = 0 gives zeros
//   both    value = element * s rounded to T: exact with kE8m0 up to T's largest number, infinite
//           beyond it (only with a scale of 2^119 or more)
template <typename T>
double block_element(T x, T scale, const BlockFormat& format, Rounding rounding, uint32_t random);
template <typename T>
T block_value(double element, T scale);

}  // namespace lockstep
