// Kernels that form their sums in another order, to see what the order changes.
// PyTorch's matrix products, convolutions and sums over a batch do not declare their order: it
// changes with library, thread count and CPU. A replay in another order is an equally good version
// of the same step. Where the two are far apart, the capture does not determine the result better
// than that.
#pragma once

#include <array>

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

inline constexpr int kOtherOrders = 8;

// Getters of the active kernels whose FP32 products and sums run over their operands in other
// orders. Order i starts at i eighths of the terms and goes around, backwards if i is even:
//   products               over k
//   convolutions           forward: over input channels, inside of a channel as before; backward to
//                          the input: output channels; to the weights: images
//   sums over channels     over the outer terms, or if there is only one, the inner ones
//   sums of rows           over columns
//   batch norm             over images, or if there is only one, its places; backward too
// Sums of other norms, softmax and losses keep their order.
std::array<const KernelSet& (*)(), kOtherOrders> kernels_in_other_orders();

}  // namespace lockstep
