// Which factor multiplies a scaled cast's operand, and how is it rounded? The values of scaled
// casts are the scaled numbers, so that the sums that read them are those of the hardware.
//
//   0. x through a Hadamard transform, if the product has one
//   1. s from the tensor's own amax, from earlier ones, or 1    2. x s in FP32
//   3. q = round(x s), measured as such                         4. the amax enters the history
// Blocks are rounded by the block kernels, or under scales that the policy states
// (factor_scales.h).
#pragma once

#include <span>
#include <vector>

#include "emulation/kernels/kernel_set.h"
#include "src/execute/factor_scales.h"
#include "src/execute/scaling_state.h"
#include "src/lower/program.h"

namespace lockstep {

class ScaledCasts {
 public:
  explicit ScaledCasts(const FactorScaling& scaling) : scaling_(scaling) {}  // must outlive this

  // The state of delayed scaling: only read (evaluation), or read and updated by every cast
  // (training). Not owned.
  void read(const ScalingState& state) { state_ = &state; }
  void learn(ScalingState& state) { state_ = learning_ = &state; }

  // y = round(x s) with the spec's key. Returns s. `stats` may be null. `blocks`, if not null,
  // receives the scale of every block, where the format has blocks.
  float run(const KernelSet& set, const ScaledCast& cast, std::span<const float> x,
            std::span<float> y, const QuantizeSpec& spec, TensorStats* stats,
            FactorScales* blocks = nullptr);

 private:
  float scale_of(const ScaledCast& cast, float amax) const;
  void round_blocks(const KernelSet& set, const ScaledCast& cast, std::span<const float> x,
                    std::span<float> y, const QuantizeSpec& spec, TensorStats* stats);

  const FactorScaling& scaling_;
  const ScalingState* state_ = nullptr;
  ScalingState* learning_ = nullptr;
  std::vector<float> rotated_, scaled_;
};

}  // namespace lockstep
