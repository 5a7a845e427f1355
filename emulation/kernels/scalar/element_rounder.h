// Rounds one element of an array by the definition. The scalar kernel uses it everywhere, the
// vector kernels at an array's ragged end.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "emulation/format/stochastic.h"
#include "emulation/kernels/args/quantize_spec.h"
#include "emulation/kernels/scalar/float_rounder.h"

namespace lockstep {

template <typename T>
class ElementRounder {
 public:
  // `spec` must outlive this object.
  explicit ElementRounder(const QuantizeSpec& spec)
      : spec_(spec), rounder_(*spec.format, spec.rounding) {
    if (spec.rounding == Rounding::kStochastic) key_ = derive_array_key(spec.key);
  }
  // With measure_only: the value itself; every NaN becomes the one quiet NaN here too.
  T operator()(T x, uint64_t index) const {
    if (spec_.measure_only) return x == x ? x : std::numeric_limits<T>::quiet_NaN();
    return with_rounding(spec_.rounding, [&]<Rounding kMode>() { return round<kMode>(x, index); });
  }
  // Requires: kMode is the spec's mode, and the spec rounds.
  template <Rounding kMode>
  T round(T x, uint64_t index) const {
    const bool stochastic = kMode == Rounding::kStochastic;
    const uint32_t random = stochastic ? stochastic_bits(key_, index) : 0;
    if constexpr (std::is_same_v<T, float>) {
      return rounder_.template round<kMode>(x, random);
    } else {
      return round_to_format(x, *spec_.format, kMode, random);
    }
  }

 private:
  const QuantizeSpec& spec_;
  FloatRounder rounder_;  // for floats
  StochasticArrayKey key_;
};

}  // namespace lockstep
