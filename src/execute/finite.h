// Is every number of a tensor finite?
#pragma once

#include <bit>
#include <cstdint>

#include "src/core/tensor.h"

namespace lockstep {

// Exponent field all ones: infinity or NaN. Integer compares vectorize, std::isfinite may not.
inline bool all_finite(const Tensor& tensor) {
  bool finite = true;
  if (tensor.container() == Container::kF64) {
    constexpr uint64_t kExponent = 0x7FF0'0000'0000'0000;
    for (const double x : tensor.as<double>()) {
      finite &= (std::bit_cast<uint64_t>(x) & kExponent) != kExponent;
    }
  } else {
    constexpr uint32_t kExponent = 0x7F80'0000;
    for (const float x : tensor.as<float>()) {
      finite &= (std::bit_cast<uint32_t>(x) & kExponent) != kExponent;
    }
  }
  return finite;
}

}  // namespace lockstep
