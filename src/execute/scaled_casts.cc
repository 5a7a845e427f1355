// See scaled_casts.h.
#include "src/execute/scaled_casts.h"

#include <stdexcept>

#include "src/execute/hadamard.h"

namespace lockstep {
namespace {

bool has_two_levels(const ScaledCast& cast) {
  return cast.to.block != nullptr && cast.to.block->scale == ScaleFormat::kE4m3;
}

}  // namespace

float ScaledCasts::scale_of(const ScaledCast& cast, float amax) const {
  switch (cast.kind) {
    case ScalingKind::kCurrent:
      return current_scale(amax, *cast.to.element, scaling_.current);
    case ScalingKind::kDelayed:
      if (state_ == nullptr) throw std::logic_error("delayed scaling without a state");
      return state_->scale(cast.name);
    case ScalingKind::kBlock:
      return has_two_levels(cast) ? two_level_scale(amax, *cast.to.block) : 1;
    case ScalingKind::kUnit:
    case ScalingKind::kNone:
      return 1;
  }
  throw std::logic_error("scale_of: unknown kind");
}

float ScaledCasts::run(const KernelSet& set, const ScaledCast& cast, std::span<const float> x,
                       std::span<float> y, const QuantizeSpec& spec, TensorStats* stats,
                       FactorScales* blocks) {
  const bool wants_amax = cast.kind == ScalingKind::kCurrent ||
                          cast.kind == ScalingKind::kDelayed || has_two_levels(cast);
  const Kernels<float>& kernels = set.f32;
  const auto count = static_cast<int64_t>(x.size());
  if (cast.rotates()) {
    rotated_.resize(x.size());
    rotate(set, x, rotated_, cast.shape, cast.signs);
    x = rotated_;
  }
  const float amax = wants_amax ? kernels.abs_max(x.data(), count) : 0;
  const float scale = scale_of(cast, amax);
  const float* scaled = x.data();
  if (scale != 1) {
    float* to = y.data();
    if (cast.to.block != nullptr && stats != nullptr) {  // what is measured must stay
      scaled_.resize(x.size());
      to = scaled_.data();
    }
    kernels.scale(x.data(), scale, to, count);
    scaled = to;
  }
  if (cast.to.block == nullptr) {
    kernels.quantize(scaled, y.data(), count,
                     {.format = cast.to.element,
                      .rounding = cast.to.rounding,
                      .key = spec.key,
                      .counts_only = spec.counts_only},
                     stats);
  } else {
    const std::span<const float> from(scaled, x.size());
    const bool has_own = cast.to.has_own_scales();
    FactorScales scales;
    if (blocks != nullptr || has_own) scales = find_scales(cast, from);
    if (has_own) {
      quantize_with_scales(set, cast, scales, from, y, spec, stats);
    } else {
      round_blocks(set, cast, from, y, spec, stats);
    }
    if (blocks != nullptr) *blocks = std::move(scales);
  }
  if (cast.kind == ScalingKind::kDelayed && learning_ != nullptr) learning_->update(cast, amax);
  return scale;
}

void ScaledCasts::round_blocks(const KernelSet& set, const ScaledCast& cast,
                               std::span<const float> x, std::span<float> y,
                               const QuantizeSpec& spec, TensorStats* stats) {
  const BlockQuantizeSpec how{cast.to.block, cast.to.rounding, spec.key};
  if (cast.to.square) {
    set.f32.quantize_block_squares(x.data(), y.data(), cast.shape.rows, cast.shape.cols, how,
                                   stats);
  } else {
    // The values do not contain the tensor's scale: it is divided out of the sums.
    set.f32.quantize_blocks(x.data(), y.data(), cast.shape, how, /*tensor_scale=*/1, stats,
                            nullptr);
  }
}

}  // namespace lockstep
