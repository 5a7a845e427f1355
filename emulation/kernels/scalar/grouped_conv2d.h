// How is a convolution in groups of channels computed by kernels that know of none?
// Output channels of group g see the input channels of group g alone: `groups` convolutions side by
// side. Images are reordered (N, G, C/G, ...) -> (G, N, C/G, ...), so that each is a whole one;
// sums, their order, formats and events are those of the kernels (ConvArgs).
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// `args`: of the whole convolution, w (O, C/groups, R, S). Requires: groups divides both numbers of
// channels.
template <typename T>
void grouped_conv2d(const Kernels<T>& kernels, ConvPass pass, const ConvArgs<T>& args,
                    int64_t groups);

}  // namespace lockstep
