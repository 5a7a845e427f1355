// Rounds a real number to a format.
// The definition: one scalar function from double to double, by integer arithmetic on the bits.
// Every fast path (quantize, accumulators) equals it bit for bit.
//
//   significand   F F F ... F L R T T ... T      F, L: kept bits   L: last kept bit
//                 |<--- p bits --->|             R: first dropped bit, T: the rest
//   nearest even: up if R and (L or any T)       nearest away: up if R
//   toward zero: never   odd: L |= R or any T    up / down: by sign, if R or any T
//   stochastic: up if r < dropped / ulp, r a 32-bit fraction (probabilities are cut to 2^-32)
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "emulation/format/double_arithmetic.h"
#include "emulation/format/format.h"
#include "emulation/format/rounding_rules.h"

namespace lockstep {

struct RoundingInfo {
  Rounding rounding;
  std::string_view name;  // "nearest_even", ...
  std::string_view help;
};
std::span<const RoundingInfo> roundings();
Rounding find_rounding(std::string_view name);  // Throws: InputError with a did-you-mean
std::string_view to_string(Rounding rounding);

// The random bits of stochastic rounding depend on this and the element index alone.
struct StochasticKey {
  uint64_t seed = 0;
  uint32_t stream = 0;  // the policy's stream number
  uint32_t site = 0;
  uint64_t step = 0;
};
// The 32 random bits of element `index`. Counter-based: equal for every thread and vector width.
uint32_t stochastic_bits(const StochasticKey& key, uint64_t index);

// Rounds x to `format`. NaN stays NaN, even if the format has none: the caller counts it. Infinity
// follows the overflow rule. A zero keeps its sign if the format has -0, also after underflow or
// a flush. Only kStochastic uses `random`.
// Source: IEEE 754-2019 §4.3, §7.4; kOdd: Boldo & Melquiond, IEEE TC 57(4), 2008.
double round_to_format(double x, const Format& format, Rounding rounding, uint32_t random = 0);

}  // namespace lockstep
