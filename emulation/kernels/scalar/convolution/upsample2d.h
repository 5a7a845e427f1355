// Resizes images: every output pixel is one input pixel, or a mean of four.
//   nearest    y = x[row, column]
//   bilinear   y = r0 (c0 x00 + c1 x01) + r1 (c0 x10 + c1 x11)
// Gradients are chains from +0 over the output pixels in scan order
// (emulation/kernels/scalar/products/chain_add.h), with one output pixel's four terms in the order
// x00, x01, x10, x11.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/args/upsample_args.h"

namespace lockstep {

template <typename T>
void upsample_nearest2d(const UpsampleShape& shape, const std::vector<int64_t>& rows,
                        const std::vector<int64_t>& columns, const T* x, T* y);
template <typename T>
void upsample_nearest2d_backward(const UpsampleShape& shape, const std::vector<int64_t>& rows,
                                 const std::vector<int64_t>& columns, const T* dy, T* dx,
                                 const Accumulator& accumulator);
template <typename T>
void upsample_bilinear2d(const UpsampleShape& shape, const std::vector<AxisSample<T>>& rows,
                         const std::vector<AxisSample<T>>& columns, const T* x, T* y);
template <typename T>
void upsample_bilinear2d_backward(const UpsampleShape& shape,
                                  const std::vector<AxisSample<T>>& rows,
                                  const std::vector<AxisSample<T>>& columns, const T* dy, T* dx,
                                  const Accumulator& accumulator);

}  // namespace lockstep
