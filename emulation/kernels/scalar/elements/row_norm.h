// Layer, RMS and group normalisation, row by row (emulation/kernels/args/norm_args.h): the
// order of the work and its sums. The loops over elements are in a table; an instruction set
// supplies only those.
#pragma once

#include "emulation/kernels/args/norm_args.h"
#include "emulation/kernels/scalar/elements/reduce.h"

namespace lockstep {

// Operations on the elements of one row; w, b, g (count) correspond to x.
template <typename T>
struct RowNormLoops {
  BlockSum<T> block_sum;
  // out = (x - mean)^2
  void (*squares)(const T* x, T mean, T* out, int64_t count);
  // y = ((x - mean) inv_std) w + b
  void (*normalise)(const T* x, T mean, T inv_std, const T* w, const T* b, T* y, int64_t count);
  // g = dy w, g_x_hat = g ((x - mean) inv_std)
  void (*terms)(const T* x, const T* dy, T mean, T inv_std, const T* w, T* g, T* g_x_hat,
                int64_t count);
  // dx = factor ((n g - sum_g) - ((x - mean) inv_std) sum_g_x_hat), n = count; dx may be g
  void (*input_gradient)(const T* x, const T* g, T mean, T inv_std, T sum_g, T sum_g_x_hat, T* dx,
                         int64_t count);
  // dweight and dbias of columns [begin, end), one group, spatial 1, where the accumulator's
  // addition is T's own; null: column by column.
  void (*column_sums)(const RowNormBackwardArgs<T>& args, int64_t begin, int64_t end) = nullptr;
};

template <typename T>
void row_norm_with(const RowNormLoops<T>& loops, const RowNormArgs<T>& args);
template <typename T>
void row_norm_backward_with(const RowNormLoops<T>& loops, const RowNormBackwardArgs<T>& args);

template <typename T>
void scalar_row_norm(const RowNormArgs<T>& args);
template <typename T>
void scalar_row_norm_backward(const RowNormBackwardArgs<T>& args);

}  // namespace lockstep
