// Adds to the integers of aligned_block_core.h: factors and addends in double containers, events
// and traces.
#include "emulation/accumulator/aligned_block.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>

#include "emulation/number/number_format.h"

namespace lockstep {
namespace {

// Collects sticky events of the blocks and, on request, traces.
class BlockObserver {
 public:
  BlockObserver(const BlockEncoding& registers, const Format& format,
                std::vector<BlockTrace>* traces)
      : events_{.registers = registers}, format_(format), traces_(traces) {}
  uint8_t events() const { return events_.events; }

  void begin_block() {
    if (traces_ != nullptr) traces_->emplace_back();
  }

  void term(int64_t k, bool negative, uint64_t magnitude, int exponent, int fraction_bits,
            int64_t kept, bool dropped) {
    if (traces_ == nullptr) return;
    const double value = std::ldexp(static_cast<double>(magnitude), exponent - fraction_bits);
    traces_->back().terms.push_back({k, negative ? -value : value, exponent, kept, dropped});
  }

  void end_block(const BlockSum& sum, const BlockRounded& rounded) {
    events_.end_block(sum, rounded);
    if (traces_ == nullptr) return;
    BlockTrace& trace = traces_->back();
    trace.special = sum.what != BlockFactor::Class::kFinite;
    trace.common_exponent = sum.common_exponent;
    trace.sum = sum.sum;
    trace.result = decode(rounded.bits, format_);
  }

  // After an IEEE addition of two registers.
  void added(uint32_t x, uint32_t y, const BlockRounded& sum) {
    events_.added(x, y, sum);
    if (traces_ == nullptr) return;
    traces_->back().addition = {decode(x, format_), decode(y, format_), decode(sum.bits, format_)};
  }

 private:
  BlockEvents events_;
  const Format& format_;
  std::vector<BlockTrace>* traces_;
};

}  // namespace

BlockFactor decode_factor(float x, const Format& format, Tf32Input tf32_input) {
  constexpr uint32_t kTf32Mask = ~uint32_t{0x1fff};  // the low 13 of 23 fraction bits are ignored
  if (format.precision == kTf32.precision && format.emin == kTf32.emin) {
    x = std::bit_cast<float>(tf32_register(std::bit_cast<uint32_t>(x), tf32_input) & kTf32Mask);
  }
  BlockFactor f;
  f.negative = std::signbit(x);
  if (std::isnan(x)) {
    f.what = BlockFactor::Class::kNan;
    return f;
  }
  if (std::isinf(x)) {
    f.what = BlockFactor::Class::kInfinite;
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

double aligned_block_dot(const Accumulator& accumulator, const float* a, const Format& a_format,
                         const float* b, const Format& b_format, int64_t count, double start,
                         uint8_t* events, std::vector<BlockTrace>* traces) {
  const Format& format = *accumulator.register_format;
  const Format& a_as = factor_format(accumulator.block, a_format);
  const Format& b_as = factor_format(accumulator.block, b_format);
  const Tf32Input tf32_input = accumulator.block.tf32_input;
  const auto decoded = [=](const float* values, const Format& of) {
    std::vector<BlockFactor> factors(static_cast<size_t>(count));
    for (int64_t k = 0; k < count; ++k) factors[k] = decode_factor(values[k], of, tf32_input);
    return [factors, count, zero = decode_factor(0, of)](int64_t k) -> const BlockFactor& {
      return k < count ? factors[k] : zero;
    };
  };
  const uint32_t addend = static_cast<uint32_t>(encode(start, format));
  BlockObserver observer(register_encoding(accumulator.block.output), format, traces);
  const uint32_t result = block_chain(accumulator.block, count, decoded(a, a_as), decoded(b, b_as),
                                      a_as.precision - 1 + b_as.precision - 1, addend, observer);
  if (events != nullptr) *events |= observer.events();
  return decode(result, format);
}

}  // namespace lockstep
