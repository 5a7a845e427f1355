// By which rules can a number become one of a format? The names of the choices, for code at compile
// time and at run time alike: rounding.h says what each of them does.
#pragma once

#include <cstdint>

namespace lockstep {

enum class Rounding : uint8_t {
  kNearestEven,
  kNearestAway,
  kTowardZero,
  kUp,
  kDown,
  kOdd,
  kStochastic,
};

// What a value beyond the largest finite number becomes. NaN stays NaN under every policy.
enum class OverflowPolicy : uint8_t {
  kInfinity,  // IEEE 754-2019 §7.4: the rounding direction decides between infinity and max_finite
  kSaturate,  // max_finite with the value's sign, whatever the direction; infinities too
  kNan,       // as kInfinity with NaN for infinity; infinities become NaN
};

// What the numbers between 0 and 2^emin become. A flush keeps the value's sign on the zero.
enum class SubnormalPolicy : uint8_t {
  kKept,
  kFlushIn,   // |x| < 2^emin is taken as zero before it is rounded (DAZ)
  kFlushOut,  // a result below 2^emin becomes zero: what rounds up to 2^emin stays (FTZ)
};

}  // namespace lockstep
