// What delayed scaling remembers from step to step.
// For every delayed cast of a lane's program: its scale and the earlier largest magnitudes, by the
// cast's name, as tensors that a checkpoint stores unchanged. The rule is in
// emulation/kernels/scaled_fp8.h.
#pragma once

#include <map>
#include <string>

#include "src/core/tensor.h"
#include "src/lower/program.h"

namespace lockstep {

class ScalingState {
 public:
  // Scale 1 and an empty history for every delayed cast.
  explicit ScalingState(const Program& program);

  // The scale for the next tensor. Throws: std::logic_error on an unknown name.
  float scale(const std::string& name) const;
  // Records that a tensor with this amax was rounded with scale(name).
  void update(const ScaledCast& cast, float amax);

  // By name: scale, number of amaxes, the amaxes from the oldest, then zeros.
  std::map<std::string, Tensor>& tensors() { return tensors_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

 private:
  DelayedScaling rule_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace lockstep
