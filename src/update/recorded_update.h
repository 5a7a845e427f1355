// The update that PyTorch made to one parameter in one step, where no rule of optimizers.h repeats
// it: lanes add it to their own weights.
#pragma once

#include <cstddef>
#include <vector>

#include "src/core/tensor.h"

namespace lockstep {

struct RecordedUpdate {
  // A weight that is PyTorch's own before the step, where before + change does not round to after:
  // a difference may need more digits than FP32 has.
  struct Element {
    size_t index;
    float before, after;
  };
  Tensor change;  // kF32: after - before, rounded
  std::vector<Element> inexact;

  // The elements of `inexact` that `weight` has, to be set after the step: so lanes that keep FP32
  // weights follow PyTorch's bit for bit. None for kF64.
  std::vector<Element> to_be_set(const Tensor& weight) const;
};
void set_elements(const std::vector<RecordedUpdate::Element>& elements, Tensor& weight);

// Of PyTorch's weights before and after a step, both kF32 of one shape; in the memory of `after`.
RecordedUpdate recorded_update(const Tensor& before, Tensor after);

}  // namespace lockstep
