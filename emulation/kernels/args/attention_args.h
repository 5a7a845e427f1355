// Scaled dot product attention, softmax(scale q k^T + mask) v, forward and backward.
//
// Implementations round at different places in between; three are modelled.
//   kMath         all of it in T, rounded as the result alone
//   kMathReduced  q and k are each multiplied by sqrt(scale) and rounded; scores are rounded; the
//                 mask is added, rounded; softmax in T, rounded; dropout, rounded; product with v
//   kFlash        scores, mask and softmax stay T; the weights are rounded only as factors of the
//                 product with v. Before or after normalisation, and in which blocks, says the
//                 kernel's row in emulation/kernels/flash_kernel.cc
// kMath multiplies in kMathReduced's order. The saved probabilities are those after softmax and
// before dropout.
#pragma once

#include <cstdint>

#include "emulation/kernels/flash_kernel.h"
#include "emulation/kernels/inner_math.h"

namespace lockstep {

enum class AttentionModel : uint8_t { kMath, kMathReduced, kFlash };

// Matrices (T,E) of q, (S,E) of k and (S,F) of v, in stacks. k_group consecutive matrices of q
// share one of k, v_group one of v (grouped queries).
struct AttentionShape {
  int64_t stacks, queries, keys, width, value_width;
  int64_t k_group = 1, v_group = 1;
  int64_t scores() const { return stacks * queries * keys; }
};

// Scores and masks are (stacks,T,S). A row of scores without any key gives zeros.
template <typename T>
struct AttentionForward {
  AttentionShape shape;
  AttentionModel model;
  const FlashKernel* flash;  // of kFlash
  InnerMath<T> math;         // a: q, b: k
  double scale;
  bool causal = false;  // key s <= query t
  const T *q = nullptr, *k = nullptr, *v = nullptr;
  const T* added_mask = nullptr;       // added to the scores, or null
  const int32_t* keep_mask = nullptr;  // where 0, the score is -inf, or null
  const int32_t* dropout_mask = nullptr;
  double dropout = 0;
  T *y = nullptr, *probabilities = nullptr;
  uint8_t* events = nullptr;  // of the product with v, see GemmArgs
};

//   dweights = dy v^T;  dp = dweights mask / (1-p);  ds = p (dp - sum(dp p))
//   dq = scale ds k;  dk = scale ds^T q;  dv = weights^T dy
// kMathReduced rounds dweights, dp and ds, and multiplies by the scale in two halves, as in the
// forward pass; kFlash rounds ds alone. Where several matrices of q share one of k or v, its
// gradient is the sum of theirs, formed by the reduce accumulator. kMathReduced rounds each of them
// first. A kernel in blocks continues one sum over all blocks and all these matrices and rounds it
// after each block.
template <typename T>
struct AttentionBackward {
  AttentionShape shape;
  AttentionModel model;
  const FlashKernel* flash;
  InnerMath<T> math;
  double scale;
  const T *q = nullptr, *k = nullptr, *v = nullptr, *probabilities = nullptr, *dy = nullptr;
  const T* y = nullptr;  // after rounding; only kernels in blocks read it
  const int32_t* dropout_mask = nullptr;
  double dropout = 0;
  T *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

}  // namespace lockstep
