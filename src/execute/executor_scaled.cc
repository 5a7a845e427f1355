// Scaled casts, and the division of their scales out of the sums that read them. The values of
// scaled casts are the scaled numbers, so that the sums are those of the hardware.
//
//   1. s from the tensor's own amax, from earlier ones, or 1    2. x s in FP32
//   3. q = round(x s), measured as such                         4. the amax enters the history
#include <cmath>
#include <stdexcept>

#include "src/execute/executor.h"

namespace lockstep {
namespace {

bool has_two_levels(const ScaledCast& cast) {
  return cast.to.block != nullptr && cast.to.block->scale == ScaleFormat::kE4m3;
}

}  // namespace

void Executor::bind_scaling(const ScalingState& state) {
  scaling_ = &state;
}

void Executor::learn_scaling(ScalingState& state) {
  scaling_ = learning_ = &state;
}

float Executor::scale_of(const ScaledCast& cast, float amax) const {
  switch (cast.kind) {
    case ScalingKind::kCurrent:
      return current_scale(amax, *cast.to.element, program_.scaling.current);
    case ScalingKind::kDelayed:
      if (scaling_ == nullptr) throw std::logic_error("delayed scaling without a state");
      return scaling_->scale(cast.name);
    case ScalingKind::kBlock:
      return has_two_levels(cast) ? two_level_scale(amax, *cast.to.block) : 1;
    case ScalingKind::kUnit:
    case ScalingKind::kNone:
      return 1;
  }
  throw std::logic_error("scale_of: unknown kind");
}

float Executor::run_scaled_cast(const ScaledCast& cast, std::span<const float> x,
                                std::span<float> y, const StochasticKey& key, TensorStats* stats) {
  const bool wants_amax = cast.kind == ScalingKind::kCurrent ||
                          cast.kind == ScalingKind::kDelayed || has_two_levels(cast);
  const Kernels<float>& kernels = this->kernels().f32;
  const auto count = static_cast<int64_t>(x.size());
  const float amax = wants_amax ? kernels.abs_max(x.data(), count) : 0;
  const float scale = scale_of(cast, amax);
  const float* scaled = x.data();
  if (scale != 1) {
    kernels.scale(x.data(), scale, y.data(), count);
    scaled = y.data();
  }
  if (cast.to.block == nullptr) {
    kernels.quantize(scaled, y.data(), count,
                     {.format = cast.to.element,
                      .rounding = cast.to.rounding,
                      .key = key,
                      .counts_only = counts_only_},
                     stats);
  } else {
    const BlockQuantizeSpec spec{cast.to.block, cast.to.rounding, key};
    if (cast.to.square) {
      kernels.quantize_block_squares(scaled, y.data(), cast.shape.rows, cast.shape.cols, spec,
                                     stats);
    } else {
      // The values do not contain the tensor's scale: it is divided out of the sums.
      kernels.quantize_blocks(scaled, y.data(), cast.shape, spec, /*tensor_scale=*/1, stats,
                              nullptr);
    }
  }
  if (cast.kind == ScalingKind::kDelayed && learning_ != nullptr) learning_->update(cast, amax);
  return scale;
}

double Executor::scale_of_sums(const Instruction& instruction) const {
  double scale = 1;
  for (const int v : instruction.inputs) scale *= static_cast<double>(value_scale_[v]);
  return scale;
}

// y = round_fp32(sum * ((1/s_a) (1/s_b))), the inverses in FP32, their product exact in double.
void Executor::divide_out_scales(const Instruction& instruction) {
  double inverse = 1;
  for (const int v : instruction.inputs) {
    inverse *= static_cast<double>(1 / value_scale_[v]);
  }
  if (inverse == 1) return;
  const auto sums = writable(instruction.outputs.at(0)).as<float>();
  kernels().f32.scale_in_double(sums.data(), inverse, sums.data(),
                                static_cast<int64_t>(sums.size()));
}

}  // namespace lockstep
