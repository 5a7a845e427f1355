// Rounds one element of an array by the definition. The scalar kernel and devices use it
// everywhere, the vector kernels at an array's ragged end.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "emulation/format/stochastic.h"
#include "emulation/kernels/args/quantize_spec.h"
#include "emulation/kernels/scalar/rounding/float_rounder.h"
#include "src/core/host_device.h"

namespace lockstep {

template <typename T>
class ElementRounder {
 public:
  // The spec's format must outlive this object.
  explicit ElementRounder(const QuantizeSpec& spec)
      : format_(spec.format),
        rounding_(spec.rounding),
        measure_only_(spec.measure_only),
        rounder_(*spec.format, spec.rounding) {
    if (rounding_ == Rounding::kStochastic) key_ = derive_array_key(spec.key);
  }
  // With measure_only: the value itself; every NaN becomes the one quiet NaN here too.
  LOCKSTEP_HOST_DEVICE T operator()(T x, uint64_t index) const {
    if (measure_only_) return x == x ? x : std::numeric_limits<T>::quiet_NaN();
    return with_rounding(rounding_, [&]<Rounding kMode>() { return round<kMode>(x, index); });
  }
  // Requires: kMode is the spec's mode, and the spec rounds.
  template <Rounding kMode>
  LOCKSTEP_HOST_DEVICE T round(T x, uint64_t index) const {
    const bool stochastic = kMode == Rounding::kStochastic;
    const uint32_t random = stochastic ? stochastic_bits(key_, index) : 0;
    if constexpr (std::is_same_v<T, float>) {
      return rounder_.template round<kMode>(x, random);
    } else {
      return round_to_format(x, *format_, kMode, random);
    }
  }

 private:
  const Format* format_;  // for doubles
  Rounding rounding_;
  bool measure_only_;
  FloatRounder rounder_;  // for floats
  StochasticArrayKey key_;
};

}  // namespace lockstep
