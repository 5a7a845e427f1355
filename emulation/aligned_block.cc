// Decoding, alignment, the exact sum and its rounding, as the header draws them.
#include "emulation/aligned_block.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "emulation/dot.h"
#include "emulation/power_of_two.h"
#include "emulation/rounding.h"

namespace lockstep {
namespace {

using Class = BlockFactor::Class;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// magnitude * 2^shift with what falls below 1 cut off.
int64_t truncated_shift(uint64_t magnitude, int shift, bool* dropped) {
  if (shift >= 0) return static_cast<int64_t>(magnitude << shift);
  const int right = -shift;
  constexpr int kBits = 64;
  if (right >= kBits) {
    *dropped = magnitude != 0;
    return 0;
  }
  *dropped = (magnitude & ((uint64_t{1} << right) - 1)) != 0;
  return static_cast<int64_t>(magnitude >> right);
}

const Format& register_format(BlockOutput output) {
  static const Format &fp32 = find_format("fp32"), &fp16 = find_format("fp16");
  return output == BlockOutput::kFp16NearestEven ? fp16 : fp32;
}

// The exact sum x, nonzero, leaves the block.
double round_output(double x, const BlockSpec& spec) {
  static const Format &fp32 = find_format("fp32"), &e8m13 = find_format("e8m13"),
                      &fp16 = find_format("fp16");
  double result;
  if (spec.output == BlockOutput::kFp16NearestEven) {
    result = round_to_format(x, fp16, Rounding::kNearestEven);
  } else {
    // Truncation overflows from 2^(emax + 1) on, where IEEE's rounding toward zero would not.
    if (std::fabs(x) >= power_of_two(fp32.emax + 1)) return std::copysign(kInfinity, x);
    result = round_to_format(x, spec.output == BlockOutput::kFp32TowardZero ? fp32 : e8m13,
                             Rounding::kTowardZero);
  }
  return result == 0 && !spec.keeps_negative_zero ? 0.0 : result;
}

// The result where an infinity or a NaN takes part, over all operands of the block.
struct Specials {
  bool nan = false, positive = false, negative = false;
  void add(Class what, bool is_negative) {
    if (what == Class::kNan) nan = true;
    if (what == Class::kInfinite) (is_negative ? negative : positive) = true;
  }
  bool any() const { return nan || positive || negative; }
  double result() const {
    if (nan || (positive && negative)) return kNan;
    return positive ? kInfinity : -kInfinity;
  }
};

Class product_class(const BlockFactor& a, const BlockFactor& b) {
  if (a.what == Class::kNan || b.what == Class::kNan) return Class::kNan;
  if (a.what == Class::kFinite && b.what == Class::kFinite) return Class::kFinite;
  const bool zero_times_infinity = (a.what == Class::kFinite && a.significand == 0) ||
                                   (b.what == Class::kFinite && b.significand == 0);
  return zero_times_infinity ? Class::kNan : Class::kInfinite;
}

}  // namespace

BlockFactor decode_factor(float x, const Format& format) {
  constexpr uint32_t kTf32Mask = ~uint32_t{0x1fff};  // the low 13 of 23 fraction bits are ignored
  if (format.precision == 11 && format.emin == -126) {
    x = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & kTf32Mask);
  }
  BlockFactor f;
  f.negative = std::signbit(x);
  if (std::isnan(x)) {
    f.what = Class::kNan;
    return f;
  }
  if (std::isinf(x)) {
    f.what = Class::kInfinite;
    return f;
  }
  f.exponent = x == 0 ? format.emin : std::max(std::ilogb(x), format.emin);
  const double steps =
      std::ldexp(std::fabs(static_cast<double>(x)), format.precision - 1 - f.exponent);
  f.significand = static_cast<uint32_t>(steps);
  if (f.significand != steps || std::fabs(x) > format.max_finite) {
    throw std::logic_error("factor " + std::to_string(x) + ": must be a value of " + format.name);
  }
  return f;
}

double aligned_block(const BlockSpec& spec, const BlockProduct* products, int64_t count, double c,
                     uint8_t* events, BlockTrace* trace) {
  const Format& register_of_c = register_format(spec.output);
  BlockFactor addend;
  addend.negative = std::signbit(c);
  addend.what = std::isnan(c) ? Class::kNan : std::isinf(c) ? Class::kInfinite : Class::kFinite;

  Specials specials;
  for (int64_t i = 0; i < count; ++i) {
    const BlockProduct& p = products[i];
    specials.add(product_class(p.a, p.b), p.a.negative != p.b.negative);
  }
  const bool infinite_operand = specials.any() || addend.what != Class::kFinite;
  specials.add(addend.what, addend.negative);
  if (infinite_operand) {
    const double result = specials.result();
    if (events != nullptr && std::isnan(result)) *events |= kStepNan;
    if (trace != nullptr) trace->special = true, trace->result = result;
    return result;
  }
  addend = decode_factor(static_cast<float>(c), register_of_c);

  const auto enters = [](const BlockProduct& p) {
    return p.a.significand != 0 && p.b.significand != 0;
  };
  int common = spec.exponent_floor;
  bool any = addend.significand != 0;
  if (any) common = std::max(common, addend.exponent);
  for (int64_t i = 0; i < count; ++i) {
    const BlockProduct& p = products[i];
    any = any || enters(p);
    if (enters(p) || spec.counts_zero_products) {
      common = std::max(common, p.a.exponent + p.b.exponent);
    }
  }
  if (!any) return 0;  // also when every product and c is -0

  int64_t sum = 0;
  bool inexact = false;
  const auto add = [&](int64_t k, bool negative, uint64_t magnitude, int exponent, int fraction) {
    bool dropped = false;
    const int shift = exponent - fraction - common + spec.fraction_bits;
    const int64_t kept = truncated_shift(magnitude, shift, &dropped);
    sum += negative ? -kept : kept;
    inexact = inexact || dropped;
    if (trace == nullptr) return;
    const double value = std::ldexp(static_cast<double>(magnitude), exponent - fraction);
    trace->terms.push_back(
        {k, negative ? -value : value, exponent, negative ? -kept : kept, dropped});
  };
  for (int64_t i = 0; i < count; ++i) {
    const BlockProduct& p = products[i];
    if (!enters(p)) continue;
    add(p.k, p.a.negative != p.b.negative, uint64_t{p.a.significand} * p.b.significand,
        p.a.exponent + p.b.exponent, p.fraction_bits);
  }
  if (addend.significand != 0) {
    add(-1, addend.negative, addend.significand, addend.exponent, register_of_c.precision - 1);
  }

  const double exact = std::ldexp(static_cast<double>(sum), common - spec.fraction_bits);
  const double result = sum == 0 ? 0.0 : round_output(exact, spec);
  if (events != nullptr) {
    inexact = inexact || result != exact;
    if (inexact) *events |= kStepInexact;
    if (inexact && result == 0) *events |= kStepToZero;
    if (std::isinf(result)) *events |= kStepToInfinity | kStepInexact;
  }
  if (trace != nullptr) {
    trace->common_exponent = common;
    trace->sum = sum;
    trace->result = result;
  }
  return result;
}

namespace {

// Where element `i` of an interval in the row's product order stands.
int64_t ordered_index(ProductOrder order, int64_t i, int64_t interval) {
  if (order == ProductOrder::kAscending) return i;
  // 0 1 4 5 8 9 ..., then 2 3 6 7 10 11 ...
  const int64_t half = interval / 2, in_half = i % half;
  return in_half / 2 * 4 + in_half % 2 + (i < half ? 0 : 2);
}

}  // namespace

double aligned_block_dot(const Accumulator& accumulator, const float* a, const Format& a_format,
                         const float* b, const Format& b_format, int64_t count, double start,
                         uint8_t* events, std::vector<BlockTrace>* traces) {
  const BlockSpec& spec = accumulator.block;
  const int fraction_bits = a_format.precision - 1 + b_format.precision - 1;
  const BlockFactor a_zero = decode_factor(0, a_format), b_zero = decode_factor(0, b_format);
  // Beyond `count` the instruction's operands are padded with zeros.
  const auto product = [&](int64_t k) {
    if (k >= count) return BlockProduct{k, a_zero, b_zero, fraction_bits};
    return BlockProduct{k, decode_factor(a[k], a_format), decode_factor(b[k], b_format),
                        fraction_bits};
  };
  std::vector<BlockProduct> products;
  const auto block = [&](double c) {
    BlockTrace* trace = traces != nullptr ? &traces->emplace_back() : nullptr;
    return aligned_block(spec, products.data(), static_cast<int64_t>(products.size()), c, events,
                         trace);
  };
  double sum = start;
  if (spec.promotion_interval == 0) {
    for (int64_t k = 0; k < count; k += spec.length) {
      products.clear();
      for (int64_t i = k; i < k + spec.length; ++i) products.push_back(product(i));
      sum = block(sum);
    }
    return sum;
  }
  const Format& format = *accumulator.register_format;
  for (int64_t begin = 0; begin < count; begin += spec.promotion_interval) {
    double partial = 0;
    for (int64_t i = 0; i < spec.promotion_interval; i += spec.length) {
      if (spec.order == ProductOrder::kAscending && begin + i >= count) break;
      products.clear();
      for (int64_t j = i; j < i + spec.length; ++j) {
        products.push_back(product(begin + ordered_index(spec.order, j, spec.promotion_interval)));
      }
      partial = block(partial);
    }
    const double exact = std::isfinite(sum) && std::isfinite(partial)
                             ? add_round_to_odd(sum, partial)
                             : sum + partial;
    const bool finite = std::isfinite(exact);
    sum = round_to_format(exact, format, Rounding::kNearestEven);
    if (events == nullptr) continue;
    if (std::isnan(sum)) *events |= kStepNan;
    if (finite && std::isinf(sum)) *events |= kStepToInfinity | kStepInexact;
    if (finite && sum != exact) *events |= kStepInexact;
  }
  return sum;
}

}  // namespace lockstep
