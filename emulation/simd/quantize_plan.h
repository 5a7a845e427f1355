// How will the vector kernel round to this format?
// Everything about a QuantizeSpec that is constant over an array, as bits of floats: chosen once
// per call, so that the kernels hold no decision about formats.
#pragma once

#include <cstdint>

#include "emulation/quantize.h"
#include "emulation/stochastic.h"

namespace lockstep {

enum class RoundPath : uint8_t {
  kIdentity,  // every float is a value of the format (or nothing is to be rounded)
  kMagic,     // nearest even by one floating-point addition
  kInteger,   // nearest even on the bits: formats with FP32's exponent field
  kGeneric,   // any rounding by integer arithmetic on the significand
  kScalar,    // left to the scalar kernel
};

struct QuantizePlan {
  RoundPath path;
  // Not set, and not needed, beyond the limits for kIdentity, and nothing at all for kScalar.
  Rounding rounding;
  bool wide_exponent;               // the format has FP32's exponent field
  int fraction_bits;                // p - 1
  uint32_t emin_field;              // FP32 exponent field of 2^emin
  uint32_t subnormal_step_up;       // 0; p-1 where the only step below 2^emin is 2^emin itself
  uint32_t max_finite, min_normal;  // bits of the format's limits as floats
  uint32_t from_infinity;           // magnitude bits of what an infinity becomes
  uint32_t overflow_positive, overflow_negative;  // ... and a value beyond max_finite
  StochasticArrayKey random;

  explicit QuantizePlan(const QuantizeSpec& spec);
};

}  // namespace lockstep
