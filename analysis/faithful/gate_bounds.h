// How far may a replay be from PyTorch?
#pragma once

#include <cstdint>

namespace lockstep {

// The bounds in the tables of docs/pytorch.md.
struct GateBounds {
  double loss = 0;            // relative
  double rtol = 0, atol = 0;  // of gradients: |g - ref| <= rtol |ref| + atol max_q |ref_q|
};
inline constexpr GateBounds kBoundsV1{1e-12, 1e-9, 1e-12};
inline constexpr GateBounds kBoundsV3{1e-6, 1e-5, 1e-6};
// Where FP32 itself does not determine the loss this well (huge logits that cancel), V3 allows this
// many times the difference between the FP32 loss and PyTorch's FP64 loss, in Lockstep or in
// PyTorch, whichever is smaller: a wrong loss on one side alone does not raise its own bound.
inline constexpr double kLossNoiseFactor = 3;
// Where FP32 itself does not determine a gradient this well (a small difference of large numbers,
// as after a normalisation over two elements), V3 allows this many times the largest change that
// one ulp of the weights makes, over kChaosTwins draws of signs, with PyTorch's choices at kinks. A
// draw is one rounding per weight. PyTorch's additional rounding was up to 3.3 times that in 80
// small captures, because its input gradient of group_norm does not centre x.
inline constexpr double kChaosFactorV3 = 4;
inline constexpr uint64_t kChaosTwins = 8;
inline constexpr double kBoundAct = 1e-5;     // L2 norm of a node's output
inline constexpr double kBoundBuffer = 1e-5;  // buffers, V4
inline constexpr double kBoundWeight = 2e-6, kBoundWeightAbsolute = 1e-7;  // V5
inline constexpr double kBoundState = 1e-6;

}  // namespace lockstep
