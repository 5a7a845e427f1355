// Operands for the tests of where values are kept.
#pragma once

#include <cstdint>
#include <utility>

#include "src/core/tensor.h"

namespace lockstep {

// Numbers of both signs, zero among them, and equal weights.
inline std::pair<Tensor, Tensor> operands_of(int64_t size, float weight) {
  Tensor x({size}, Container::kF32), w({size}, Container::kF32);
  for (size_t i = 0; i < x.as<float>().size(); ++i) {
    x.as<float>()[i] = static_cast<float>(i % 97) / 16 - 3;
    w.as<float>()[i] = weight;
  }
  return {std::move(x), std::move(w)};
}

}  // namespace lockstep
