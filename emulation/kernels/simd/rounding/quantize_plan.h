// How the vector kernel rounds to a format.
// The rounding path that is exact for the format, and its limits as bits of floats; chosen once per
// call.
#pragma once

#include <cstdint>

#include "emulation/format/float_format.h"
#include "emulation/format/stochastic.h"
#include "emulation/kernels/args/quantize_spec.h"

namespace lockstep {

enum class RoundPath : uint8_t {
  kIdentity,  // every float is a value of the format (or nothing is to be rounded)
  kMagic,     // nearest even by one floating-point addition
  kInteger,   // nearest even on the bits: formats with FP32's exponent field
  kGeneric,   // any rounding by integer arithmetic on the significand
  kScalar,    // left to the scalar kernel
};

// kIdentity uses only max_finite and min_normal of the limits; kScalar uses none.
struct QuantizePlan : FloatFormat {
  RoundPath path;
  Rounding rounding;
  StochasticArrayKey random;

  explicit QuantizePlan(const QuantizeSpec& spec);
};

}  // namespace lockstep
