// One running sum of products in a declared accumulator, for the plain loops of gemm and conv2d.
// Does what accumulate_step does, faster; holds the sum in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "emulation/accumulator.h"
#include "emulation/fast_round.h"

namespace lockstep {

template <typename T>
class ChainRule {
 public:
  explicit ChainRule(const Accumulator& accumulator)
      : accumulator_(accumulator),
        round_(*accumulator.format),
        // One std::fma does the whole step where the sum lives in the container's own format.
        native_(std::is_same_v<T, float> ? accumulator.format->is_fp32()
                                         : accumulator.format->is_fp64()),
        // FastRound needs exact products, which doubles do not have.
        exact_products_(std::is_same_v<T, float> && !accumulator.format->is_fp64()) {}

  double step(double acc, T a, T b, uint8_t* events) const {
    if (events == nullptr && native_) {
      return canonical_nan(std::fma(a, b, static_cast<T>(acc)));
    }
    if (!exact_products_) return accumulate_step(accumulator_, acc, a, b, events);
    return events != nullptr ? round_.step(acc, a, b, *events) : round_.step(acc, a, b);
  }

 private:
  const Accumulator& accumulator_;
  FastRound round_;
  bool native_, exact_products_;
};

}  // namespace lockstep
