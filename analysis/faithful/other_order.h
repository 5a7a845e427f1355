// What does the order of sums change?
// PyTorch's matrix products, convolutions and sums over a batch do not declare their order: it
// changes with library, thread count and CPU. A replay from the last term to the first is an
// equally good version of the same step. Where the two are far apart, the capture does not
// determine the result better than that.
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// The active kernels, whose FP32 products and sums run over their operands in the opposite order:
//   products                 k descending
//   convolutions             forward: input channels descending, inside a channel as before;
//                            backward to the input: output channels; to the weights: images
//   sums over channels       outer terms descending, or if there is only one, the inner ones
//   sums of rows             columns descending
// Sums of norms, softmax and losses keep their order: they are not rounded to a narrow format term
// by term, and PyTorch's kernels add them up in double or by blocks.
const KernelSet& kernels_in_other_order();

}  // namespace lockstep
