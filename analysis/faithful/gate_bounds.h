// How far may a replay be from PyTorch?
#pragma once

#include <cstdint>

namespace lockstep {

// The bounds, from the tables of docs/pytorch.md.
struct GateBounds {
  double loss = 0;            // relative
  double rtol = 0, atol = 0;  // of gradients: |g - ref| <= rtol |ref| + atol max_q |ref_q|
};
inline constexpr GateBounds kBoundsV1{1e-12, 1e-9, 1e-12};
inline constexpr GateBounds kBoundsV3{1e-6, 1e-5, 1e-6};
// Where FP32 itself does not determine the loss so well (huge logits that cancel), V3 allows this
// many times what it differs from PyTorch's FP64 loss, in Lockstep or in PyTorch, whichever differs
// less: a wrong loss on one side alone does not raise its own bound.
inline constexpr double kLossNoiseFactor = 3;
// Where FP32 itself does not determine a gradient so well (a small difference of large numbers, as
// behind a normalisation over two elements), V3 allows this many times the most that one ulp of the
// weights changes in it, of so many draws of signs, with PyTorch's choices at kinks. A draw is one
// rounding per weight; what PyTorch rounds on top of it, its input gradient of group_norm does not
// centre x, was up to 3.3 times that in 80 small captures.
inline constexpr double kChaosFactorV3 = 4;
inline constexpr uint64_t kChaosTwins = 8;
inline constexpr double kBoundAct = 1e-5;     // the L2 norm of a node's output, to find the first
inline constexpr double kBoundBuffer = 1e-5;  // buffers, V4
inline constexpr double kBoundWeight = 2e-6, kBoundWeightAbsolute = 1e-7;  // V5
inline constexpr double kBoundState = 1e-6;

}  // namespace lockstep
