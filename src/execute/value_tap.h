// Copies of the values that are measured at one site of a lane, for looking at single elements:
// which one differs first between two runs, what a tensor held when it broke. Statistics know no
// elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "emulation/format/format.h"
#include "src/core/tensor.h"

namespace lockstep {

struct ValueTap {
  int32_t site = -1;
  std::vector<Tensor> values;      // of every pass of the step in progress, in order
  const Format* format = nullptr;  // theirs

  void take(std::span<const int32_t> sites, const Tensor& tensor, const Format& of) {
    if (std::ranges::find(sites, site) == sites.end()) return;
    values.push_back(tensor);
    format = &of;
  }
};

}  // namespace lockstep
