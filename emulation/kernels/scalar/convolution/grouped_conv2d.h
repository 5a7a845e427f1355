// Computes a convolution in groups of channels with kernels that do not support groups.
// Output channels of group g read only the input channels of group g: these are `groups` separate
// convolutions. Images are reordered (N, G, C/G, ...) -> (G, N, C/G, ...), so that each group is a
// whole convolution. Sums, their order, formats and events are those of the kernels (ConvArgs).
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// `args`: of the whole convolution, w (O, C/groups, R, S). Requires: groups divides both numbers of
// channels.
template <typename T>
void grouped_conv2d(const Kernels<T>& kernels, ConvPass pass, const ConvArgs<T>& args,
                    int64_t groups);

}  // namespace lockstep
