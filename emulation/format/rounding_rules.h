// The names of the rounding rules, for compile time and run time. rounding.h says what each rule
// does.
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

// The result for a value beyond the largest finite number. NaN stays NaN under every rule.
enum class OverflowRule : uint8_t {
  kInfinity,  // IEEE 754-2019 §7.4: the rounding direction decides between infinity and max_finite
  kSaturate,  // max_finite with the value's sign, in every direction; infinities too
  kNan,       // as kInfinity with NaN for infinity; infinities become NaN
};

// The results between 0 and 2^emin. A flush gives a zero with the value's sign.
enum class SubnormalRule : uint8_t {
  kKept,
  kFlushIn,   // |x| < 2^emin is taken as zero before it is rounded (DAZ)
  kFlushOut,  // a result below 2^emin becomes zero; one that rounds up to 2^emin stays (FTZ)
};

}  // namespace lockstep
