// The bounds of the gates: how far a replay may be from PyTorch.
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
// Floors from the error of FP32 itself, |FP32 - FP64|, with PyTorch's own FP64. Two results with an
// error each are at most the sum of both apart; one order of sums may do better than another.
inline constexpr double kNoiseFactor = 3;
// V3's loss (huge logits that cancel): kNoiseFactor times the smaller of Lockstep's error and
// PyTorch's. The larger counts as far as the order of a sum explains it, up to sqrt(n) u of the
// loss: the random walk of n roundings in a sequential sum. Beyond that, a wrong loss on one side
// alone does not raise its own bound. V3's gradients: the same of PyTorch's error alone. Here n is
// the number of elements of the largest tensor: no sum has more terms. Below n = 3100 the plain
// bound of gradients is larger. A lane's sums have one order, PyTorch's kernels add in blocks: a
// gradient that misses these bounds may be kNoiseFactor sqrt(t) u of it away, where t is the number
// of terms of its own sums (the rows of the batch for a linear layer).
// V4's buffers (a running mean that is all cancellation): kNoiseFactor times PyTorch's own error,
// or where that came out small by luck kChaosFactor times what one ulp of the weights moves, both
// only if the FP64 replay is within this share of that error: a wrong momentum is not. FP64's own
// rounding is 2^-29 of FP32's.
inline constexpr double kExactShare = 0x1p-10;
// Where FP32 itself does not determine a gradient or a loss this well (a small difference of large
// numbers, as after a normalisation over two elements, or second differences), V3 allows this many
// times the largest change that one ulp of the weights makes, over kChaosTwins draws of signs, with
// PyTorch's choices at kinks. A draw is one rounding per weight. PyTorch's additional rounding was
// up to 3.3 times that in 80 small captures, because its input gradient of group_norm does not
// centre x.
inline constexpr double kChaosFactor = 4;
inline constexpr uint64_t kChaosTwins = 8;
inline constexpr double kBoundAct = 1e-5;     // L2 norm of a node's output
inline constexpr double kBoundBuffer = 1e-5;  // buffers, V4
inline constexpr double kBoundWeight = 2e-6, kBoundWeightAbsolute = 1e-7;  // V5
inline constexpr double kBoundState = 1e-6;

}  // namespace lockstep
