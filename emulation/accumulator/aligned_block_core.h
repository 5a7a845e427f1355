// One block of a tensor core's sum, in integers.
// The arithmetic of aligned_block.h on storage bits, written once for the host and for GPU kernels:
// decoding, the common exponent, alignment by truncation, the exact sum, its one rounding, the
// chain of blocks, and their events. Knows nothing of formats' names or of traces: it calls an
// observer.
#pragma once

#include <bit>
#include <cstdint>

#include "emulation/accumulator/accumulator.h"
#include "emulation/accumulator/accumulator_event.h"
#include "emulation/accumulator/fast_round.h"
#include "src/core/host_device.h"

namespace lockstep {

// A factor as the hardware decodes it: value = (-1)^negative * significand * 2^(exponent - p + 1).
// The exponent is that of the encoding (emin for zero and subnormals).
struct BlockFactor {
  enum class Class : uint8_t { kFinite, kInfinite, kNan };
  Class what = Class::kFinite;
  bool negative = false;
  int exponent = 0;
  uint32_t significand = 0;
};

// How a number is stored: [sign | exponent field | fraction], right-aligned in a word.
struct BlockEncoding {
  int precision = 0;  // p, implicit bit included
  int emin = 0;
  int storage_bits = 0;  // 1 + exponent field + (p - 1)
  bool has_infinity = true;
  int ignored_bits = 0;  // low bits of the register that are ignored: 13 of TF32's 32

  LOCKSTEP_HOST_DEVICE constexpr int fraction_bits() const { return precision - 1; }
  LOCKSTEP_HOST_DEVICE constexpr uint32_t field_mask() const {
    return (uint32_t{1} << (storage_bits - precision)) - 1;
  }
  LOCKSTEP_HOST_DEVICE constexpr uint32_t fraction_mask() const {
    return (uint32_t{1} << fraction_bits()) - 1;
  }
  LOCKSTEP_HOST_DEVICE constexpr uint32_t sign_bit() const {
    return uint32_t{1} << (storage_bits - 1);
  }
  // Infinities have all exponent bits set. The one NaN of NVIDIA's chips has all fraction bits set
  // too, and no sign: 7fffffff, 7fff.
  LOCKSTEP_HOST_DEVICE constexpr uint32_t infinity() const {
    return field_mask() << fraction_bits();
  }
  LOCKSTEP_HOST_DEVICE constexpr uint32_t nan() const { return sign_bit() - 1; }
  LOCKSTEP_HOST_DEVICE constexpr bool is_nan(uint32_t bits) const {
    return (bits & (sign_bit() - 1)) > infinity();
  }
};

// The register that a block's addend comes from and its result goes to.
LOCKSTEP_HOST_DEVICE constexpr BlockEncoding register_encoding(BlockOutput output) {
  if (output == BlockOutput::kFp16NearestEven) {
    return {.precision = 11, .emin = -14, .storage_bits = 16};
  }
  return {.precision = 24, .emin = -126, .storage_bits = 32};
}

// The FP32 register after a rounding of TF32 inputs, for hardware that rounds them. Its low 13 bits
// must still be ignored.
LOCKSTEP_HOST_DEVICE constexpr uint32_t tf32_register(uint32_t bits, Tf32Input input) {
  constexpr uint32_t kHalf = uint32_t{1} << 12, kLastKept = uint32_t{1} << 13;
  constexpr BlockEncoding kFp32 = register_encoding(BlockOutput::kFp32TowardZero);
  if (input == Tf32Input::kTruncate || (bits & kFp32.infinity()) == kFp32.infinity()) return bits;
  if (input == Tf32Input::kNearestAway) return bits + kHalf;
  return bits + (kHalf - 1) + ((bits & kLastKept) != 0 ? 1 : 0);
}

LOCKSTEP_HOST_DEVICE inline BlockFactor decode_bits(uint32_t bits, const BlockEncoding& e) {
  bits >>= e.ignored_bits;
  const uint32_t fraction = bits & e.fraction_mask();
  const uint32_t field = bits >> e.fraction_bits() & e.field_mask();
  BlockFactor f;
  f.negative = (bits & e.sign_bit()) != 0;
  if (field == e.field_mask()) {
    if (e.has_infinity) {
      f.what = fraction == 0 ? BlockFactor::Class::kInfinite : BlockFactor::Class::kNan;
      return f;
    }
    if (fraction == e.fraction_mask()) {  // E4M3: one NaN per sign, finite numbers below it
      f.what = BlockFactor::Class::kNan;
      return f;
    }
  }
  f.exponent = (field == 0 ? 1 : static_cast<int>(field)) - 1 + e.emin;
  f.significand = field == 0 ? fraction : fraction | uint32_t{1} << e.fraction_bits();
  return f;
}

// An FP8 factor with this many fraction bits as the FP16 number that an instruction converts it to.
LOCKSTEP_HOST_DEVICE inline BlockFactor as_fp16(BlockFactor f, int fraction_bits) {
  const BlockEncoding e = register_encoding(BlockOutput::kFp16NearestEven);
  f.significand <<= e.fraction_bits() - fraction_bits;
  if (f.significand == 0) f.exponent = e.emin;
  while (f.exponent > e.emin && f.significand >> e.fraction_bits() == 0) {
    f.significand <<= 1;
    --f.exponent;
  }
  return f;
}

// An aligned sum before its rounding: sum * 2^(common_exponent - F), or a special value.
struct BlockSum {
  BlockFactor::Class what = BlockFactor::Class::kFinite;
  bool negative = false;  // of an infinity
  bool empty = false;     // no nonzero term
  bool inexact = false;   // alignment cut something off
  int common_exponent = 0;
  int64_t sum = 0;
};

struct BlockRounded {
  uint32_t bits = 0;  // FP32, or FP16 in the low half
  bool inexact = false;
};

// magnitude * 2^shift with the bits below 1 cut off.
LOCKSTEP_HOST_DEVICE inline int64_t truncated_shift(uint64_t magnitude, int shift, bool* dropped) {
  constexpr int kBits = 64;
  if (shift >= 0) return static_cast<int64_t>(magnitude << shift);
  const int right = -shift;
  if (right >= kBits) {
    *dropped = magnitude != 0;
    return 0;
  }
  *dropped = (magnitude & ((uint64_t{1} << right) - 1)) != 0;
  return static_cast<int64_t>(magnitude >> right);
}

LOCKSTEP_HOST_DEVICE inline BlockFactor::Class product_class(const BlockFactor& a,
                                                             const BlockFactor& b) {
  using Class = BlockFactor::Class;
  if (a.what == Class::kNan || b.what == Class::kNan) return Class::kNan;
  if (a.what == Class::kFinite && b.what == Class::kFinite) return Class::kFinite;
  const bool zero_times_infinity = (a.what == Class::kFinite && a.significand == 0) ||
                                   (b.what == Class::kFinite && b.significand == 0);
  return zero_times_infinity ? Class::kNan : Class::kInfinite;
}

// An observer that ignores everything and costs nothing.
struct IgnoreBlocks {
  LOCKSTEP_HOST_DEVICE void begin_block() {}
  LOCKSTEP_HOST_DEVICE void term(int64_t, bool, uint64_t, int, int, int64_t, bool) {}
  LOCKSTEP_HOST_DEVICE void end_block(const BlockSum&, const BlockRounded&) {}
  LOCKSTEP_HOST_DEVICE void added(uint32_t, uint32_t, const BlockRounded&) {}
};

// An observer that collects the sticky AccumulatorEvents of a chain.
struct BlockEvents {
  BlockEncoding registers;  // of the chain's output
  uint8_t events = 0;

  LOCKSTEP_HOST_DEVICE void begin_block() {}
  LOCKSTEP_HOST_DEVICE void term(int64_t, bool, uint64_t, int, int, int64_t, bool) {}
  LOCKSTEP_HOST_DEVICE void end_block(const BlockSum& sum, const BlockRounded& rounded) {
    const uint32_t magnitude = rounded.bits & (registers.sign_bit() - 1);
    if (magnitude > registers.infinity()) events |= kStepNan;
    if (rounded.inexact) events |= magnitude == 0 ? kStepInexact | kStepToZero : kStepInexact;
    const bool special = sum.what != BlockFactor::Class::kFinite;
    if (!special && magnitude == registers.infinity()) events |= kStepToInfinity | kStepInexact;
  }
  // After an IEEE addition of two registers.
  LOCKSTEP_HOST_DEVICE void added(uint32_t x, uint32_t y, const BlockRounded& sum) {
    if (registers.is_nan(sum.bits)) events |= kStepNan;
    const auto magnitude = [this](uint32_t bits) { return bits & (registers.sign_bit() - 1); };
    if (magnitude(x) >= registers.infinity() || magnitude(y) >= registers.infinity()) return;
    if (magnitude(sum.bits) == registers.infinity()) events |= kStepToInfinity;
    if (sum.inexact) events |= kStepInexact;
  }
};

constexpr int64_t kAddendIndex = -1;  // the addend's k in calls of an observer

// A factor's exponent in the search for the common one.
LOCKSTEP_HOST_DEVICE inline int counted_exponent(const BlockSpec& spec, const BlockFactor& f) {
  constexpr int kFp32Emin = -126;
  const bool is_fp32s = spec.zero_products == ZeroProducts::kFp32Emin && f.significand == 0;
  return is_fp32s ? kFp32Emin : f.exponent;
}

// The aligned sum of `count` products and one addend. index(i) is the k of the i-th product; a(k)
// and b(k) are its factors. Their significands together have `fraction_bits` after the point.
template <typename Index, typename A, typename B, typename Observer>
LOCKSTEP_HOST_DEVICE BlockSum sum_block(const BlockSpec& spec, int count, const Index& index,
                                        const A& a, const B& b, int fraction_bits,
                                        const BlockFactor& addend, int addend_fraction_bits,
                                        Observer& observer) {
  using Class = BlockFactor::Class;
  BlockSum out;
  bool nan = addend.what == Class::kNan;
  bool infinite[2] = {false, false};  // by sign
  if (addend.what == Class::kInfinite) infinite[addend.negative] = true;
  bool any = addend.significand != 0;
  int common = spec.exponent_floor;
  if (any && addend.exponent > common) common = addend.exponent;
  for (int i = 0; i < count; ++i) {
    const BlockFactor& x = a(index(i));
    const BlockFactor& y = b(index(i));
    const Class what = product_class(x, y);
    nan = nan || what == Class::kNan;
    if (what == Class::kInfinite) infinite[x.negative != y.negative] = true;
    const bool enters = x.significand != 0 && y.significand != 0;
    any = any || enters;
    if (!enters && spec.zero_products == ZeroProducts::kIgnored) continue;
    const int exponent = counted_exponent(spec, x) + counted_exponent(spec, y);
    if (exponent > common) common = exponent;
  }
  if (nan || infinite[0] || infinite[1]) {
    out.what = nan || (infinite[0] && infinite[1]) ? Class::kNan : Class::kInfinite;
    out.negative = infinite[1];
    return out;
  }
  out.empty = !any;
  if (!any) return out;  // +0, also when every product and the addend are -0
  out.common_exponent = common;

  const auto add = [&](int64_t k, bool negative, uint64_t magnitude, int exponent, int fraction) {
    bool dropped = false;
    const int64_t kept =
        truncated_shift(magnitude, exponent - fraction - common + spec.fraction_bits, &dropped);
    out.sum += negative ? -kept : kept;
    out.inexact = out.inexact || dropped;
    observer.term(k, negative, magnitude, exponent, fraction, negative ? -kept : kept, dropped);
  };
  for (int i = 0; i < count; ++i) {
    const BlockFactor& x = a(index(i));
    const BlockFactor& y = b(index(i));
    if (x.significand == 0 || y.significand == 0) continue;
    add(index(i), x.negative != y.negative, uint64_t{x.significand} * y.significand,
        x.exponent + y.exponent, fraction_bits);
  }
  if (addend.significand != 0) {
    add(kAddendIndex, addend.negative, addend.significand, addend.exponent, addend_fraction_bits);
  }
  return out;
}

// Requires: x != 0.
LOCKSTEP_HOST_DEVICE inline int floor_log2(uint64_t x) {
  int result = 0;
  for (int step = 32; step > 0; step /= 2) {
    if (x >> step == 0) continue;
    x >>= step;
    result += step;
  }
  return result;
}

// magnitude * 2^exponent, nonzero, to `output`.
//   toward zero: from 2^128 on infinity; IEEE's rounding would give the largest number
//   to nearest even: as drawn in rounding.h; a carry runs into the exponent field, up to infinity
LOCKSTEP_HOST_DEVICE inline BlockRounded round_exact(uint64_t magnitude, int exponent,
                                                     bool negative, BlockOutput output) {
  constexpr int kE8m13Fraction = 13, kWordBits = 64;
  const BlockEncoding e = register_encoding(output);
  const int fraction = output == BlockOutput::kE8m13TowardZero ? kE8m13Fraction : e.fraction_bits();
  const uint32_t sign = negative ? e.sign_bit() : 0;

  const int top = floor_log2(magnitude) + exponent, emax = 1 - e.emin;
  if (top > emax) return {sign | e.infinity(), true};
  const int binade = top > e.emin ? top : e.emin;
  const int shift = exponent - (binade - fraction);
  uint64_t significand;
  bool inexact = false;
  if (shift >= 0) {
    significand = magnitude << shift;
  } else {
    const int right = -shift;
    significand = right >= kWordBits ? 0 : magnitude >> right;
    const uint64_t rest = right >= kWordBits ? magnitude : magnitude & ((uint64_t{1} << right) - 1);
    inexact = rest != 0;
    if (output == BlockOutput::kFp16NearestEven && right <= kWordBits) {
      const uint64_t half = uint64_t{1} << (right - 1);
      if (rest > half || (rest == half && (significand & 1) != 0)) ++significand;
    }
  }
  // The implicit bit adds one to the exponent field; subnormals have none.
  const uint32_t bits = (static_cast<uint32_t>(binade - e.emin) << e.fraction_bits()) +
                        static_cast<uint32_t>(significand << (e.fraction_bits() - fraction));
  return {sign | bits, inexact || bits == e.infinity()};
}

LOCKSTEP_HOST_DEVICE inline BlockRounded round_block(const BlockSpec& spec, const BlockSum& s) {
  const BlockEncoding e = register_encoding(spec.output);
  if (s.what == BlockFactor::Class::kNan) return {e.nan(), false};
  if (s.what == BlockFactor::Class::kInfinite) {
    return {e.infinity() | (s.negative ? e.sign_bit() : 0), false};
  }
  if (s.sum == 0) return {0, s.inexact};
  const bool negative = s.sum < 0;
  BlockRounded r = round_exact(static_cast<uint64_t>(negative ? -s.sum : s.sum),
                               s.common_exponent - spec.fraction_bits, negative, spec.output);
  if (r.bits == e.sign_bit() && !spec.keeps_negative_zero) r.bits = 0;
  r.inexact = r.inexact || s.inexact;
  return r;
}

// x + y of two FP16 numbers, IEEE to nearest even. Both are multiples of 2^-24 below 2^16, so their
// sum is exact in 64 bits and rounded once.
LOCKSTEP_HOST_DEVICE inline BlockRounded add_fp16(uint32_t x, uint32_t y) {
  using Class = BlockFactor::Class;
  const BlockEncoding e = register_encoding(BlockOutput::kFp16NearestEven);
  const BlockFactor p = decode_bits(x, e), q = decode_bits(y, e);
  if (p.what == Class::kNan || q.what == Class::kNan) return {e.nan(), false};
  if (p.what == Class::kInfinite || q.what == Class::kInfinite) {
    if (p.what == q.what && p.negative != q.negative) return {e.nan(), false};
    return {p.what == Class::kInfinite ? x : y, false};
  }
  const auto steps = [&](const BlockFactor& f) {  // in units of 2^(emin - 10)
    const int64_t magnitude = static_cast<int64_t>(f.significand) << (f.exponent - e.emin);
    return f.negative ? -magnitude : magnitude;
  };
  const int64_t sum = steps(p) + steps(q);
  if (sum == 0) return {p.negative && q.negative ? e.sign_bit() : 0, false};
  return round_exact(static_cast<uint64_t>(sum < 0 ? -sum : sum), e.emin - e.fraction_bits(),
                     sum < 0, BlockOutput::kFp16NearestEven);
}

// One IEEE addition of two registers, to nearest even; NaN is the chip's own (PTX ISA, add).
LOCKSTEP_HOST_DEVICE inline BlockRounded add_registers(uint32_t x, uint32_t y, BlockOutput output) {
  if (output == BlockOutput::kFp16NearestEven) return add_fp16(x, y);
  const BlockEncoding e = register_encoding(output);
#ifdef __CUDA_ARCH__
  const float p = __uint_as_float(x), q = __uint_as_float(y), sum = __fadd_rn(p, q);
  const uint32_t bits = __float_as_uint(sum);
#else
  const float p = std::bit_cast<float>(x), q = std::bit_cast<float>(y), sum = p + q;
  const auto bits = std::bit_cast<uint32_t>(sum);
#endif
  // If the exact sum is not an FP32 number, the sum rounded to odd is not one either.
  return {e.is_nan(bits) ? e.nan() : bits, double{sum} != fast_add_to_odd(p, q)};
}

// The k of element `i` of an interval in the row's product order.
LOCKSTEP_HOST_DEVICE inline int64_t ordered_index(ProductOrder order, int64_t i, int64_t interval) {
  if (order == ProductOrder::kAscending) return i;
  // 0 1 4 5 8 9 ..., then 2 3 6 7 10 11 ...
  const int64_t half = interval / 2, in_half = i % half;
  return in_half / 2 * 4 + in_half % 2 + (i < half ? 0 : 2);
}

// The chain of blocks over k ascending, promotion included, from the register `start`. a(k), b(k)
// are factors for every k in [0, count) and zeros beyond it: instructions are padded with zeros.
template <typename A, typename B, typename Observer>
LOCKSTEP_HOST_DEVICE uint32_t block_chain(const BlockSpec& spec, int64_t count, const A& a,
                                          const B& b, int fraction_bits, uint32_t start,
                                          Observer& observer) {
  const BlockEncoding e = register_encoding(spec.output);
  const auto block = [&](int64_t interval_begin, int64_t interval, int64_t first, uint32_t c) {
    const auto index = [&](int i) {
      return interval_begin + ordered_index(spec.order, first + i, interval);
    };
    observer.begin_block();
    const BlockSum sum = sum_block(spec, spec.length, index, a, b, fraction_bits, decode_bits(c, e),
                                   e.fraction_bits(), observer);
    const BlockRounded rounded = round_block(spec, sum);
    observer.end_block(sum, rounded);
    return rounded.bits;
  };
  uint32_t sum = start;
  if (spec.promotion_interval == 0) {
    for (int64_t k = 0; k < count; k += spec.length) sum = block(k, spec.length, 0, sum);
    return sum;
  }
  for (int64_t begin = 0; begin < count; begin += spec.promotion_interval) {
    uint32_t partial = 0;
    for (int64_t i = 0; i < spec.promotion_interval; i += spec.length) {
      if (spec.order == ProductOrder::kAscending && begin + i >= count) break;
      partial = block(begin, spec.promotion_interval, i, partial);
    }
    const BlockRounded joined = add_registers(sum, partial, spec.output);
    observer.added(sum, partial, joined);
    sum = joined.bits;
  }
  return sum;
}

}  // namespace lockstep
