// One element of an array, rounded by the definition: what the scalar kernel does everywhere and
// the vector kernels do at an array's ragged end.
#pragma once

#include <cstdint>
#include <limits>

#include "emulation/quantize.h"
#include "emulation/stochastic.h"

namespace lockstep {

template <typename T>
class ElementRounder {
 public:
  // `spec` must outlive this object.
  explicit ElementRounder(const QuantizeSpec& spec)
      : spec_(spec), stochastic_(spec.rounding == Rounding::kStochastic) {
    if (stochastic_) key_ = derive_array_key(spec.key);
  }
  // With measure_only the value itself; a NaN counts as the one quiet NaN there too.
  T operator()(T x, uint64_t index) const {
    if (spec_.measure_only) return x == x ? x : std::numeric_limits<T>::quiet_NaN();
    const uint32_t random = stochastic_ ? stochastic_bits(key_, index) : 0;
    return static_cast<T>(round_to_format(x, *spec_.format, spec_.rounding, random));
  }

 private:
  const QuantizeSpec& spec_;
  bool stochastic_;
  StochasticArrayKey key_;
};

}  // namespace lockstep
