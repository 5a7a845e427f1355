// Rows and elements picked by index, and the sums of their gradients. Every sum is a chain over
// ascending positions from +0 (emulation/kernels/scalar/chain_add.h), whatever the threads.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/accumulator/accumulator.h"

namespace lockstep {

// y[o, j, :] = x[o, index[j], :]; x (O,K,I), y (O,J,I). Requires: 0 <= index < K.
struct RowPick {
  int64_t outer, rows, inner;  // O, K, I of x
  const int32_t* index;
  int64_t count;      // J
  int64_t skip = -1;  // rows with this index get no gradient
};
template <typename T>
void pick_rows(const RowPick& pick, const T* x, T* y);
// dx[o, k, :] = sum over ascending j with index[j] = k of dy[o, j, :].
template <typename T>
void pick_rows_backward(const RowPick& pick, const T* dy, T* dx, const Accumulator& accumulator);

// y[o, j, i] = x[outer[o] + index[o, j, i] * stride + inner[i]]; index and y (O,J,I).
struct ElementPick {
  std::vector<int64_t> outer, inner;  // where in x the dimensions around the indexed one begin
  int64_t stride, count;              // of the indexed dimension: in x; J
  const int32_t* index;
};
template <typename T>
void pick_elements(const ElementPick& pick, const T* x, T* y);
// dx += dy in the place each element came from, ascending j. Requires: dx is zero.
template <typename T>
void pick_elements_backward(const ElementPick& pick, const T* dy, T* dx,
                            const Accumulator& accumulator);

}  // namespace lockstep
