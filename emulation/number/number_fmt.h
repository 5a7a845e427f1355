// Prints a Number with {fmt}, as the float of the same value.
// Takes float's format specifications: `{}` gives the shortest decimal that identifies that float;
// `{:.3e}`, `{:>10g}` and `{:a}` work as for float.
#pragma once

#include <fmt/format.h>

#include "emulation/number/number.h"

template <lockstep::NumberFormat F, typename Char>
struct fmt::formatter<lockstep::Number<F>, Char> : fmt::formatter<float, Char> {
  template <typename Context>
  auto format(lockstep::Number<F> x, Context& context) const {
    return fmt::formatter<float, Char>::format(static_cast<float>(x), context);
  }
};
