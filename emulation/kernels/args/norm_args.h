// The arguments and formulas of the normalisations.
#pragma once

#include <cstdint>

#include "emulation/accumulator/accumulator.h"
#include "emulation/format/format.h"

namespace lockstep {

// Batch normalisation over (N, S) of x (N,C,S). Sums go through `accumulator`, the rest is T.
//   mean = sum x / n;  var = sum (x - mean)^2 / n (two passes);  y = (x - mean) * inv_std * w + b
//   inv_std = 1 / sqrt(var + eps)
// Running statistics: new = (1 - momentum) * old + momentum * batch, with the unbiased variance
// (n / (n-1)). Evaluation mode uses the running ones unchanged.
// `statistics`: if not null, PyTorch's CPU kernel, y = fma(x, inv_std * w, fma(-mean, inv_std * w,
// b)). If narrower than FP32, the format to which it rounds all of them, r:
//   mean = r(sum x / n);  var = r(r(sum (x - m)^2) / r(n)), unbiased with r(n - 1)
//   m: the unrounded mean; where S is 1, the rounded one (the loop over rows; that of channels_last
//   is not modelled)
//   inv_std = r(1 / sqrt(var + eps));  new = r(r(r(momentum) batch) + r(r(1 - r(momentum)) old))
template <typename T>
struct BatchNormArgs {
  int64_t batch, channels, spatial;
  double eps, momentum;
  bool training;
  const T *x, *weight, *bias, *running_mean, *running_var;  // running_*: may be null when training
  T *y, *new_running_mean, *new_running_var, *mean, *inv_std;
  const Accumulator* accumulator;
  const Format* statistics = nullptr;
};
// Training: dx = w inv_std / n * (n dy - sum dy - xhat sum(dy xhat)), db = sum dy,
//           dw = sum(dy xhat), xhat = (x - mean) inv_std.   Evaluation: dx = dy w inv_std.
template <typename T>
struct BatchNormBackwardArgs {
  int64_t batch, channels, spatial;
  bool training;
  const T *x, *dy, *weight, *mean, *inv_std;
  T *dx, *dweight, *dbias;
  const Accumulator* accumulator;
};

// Normalisation of the rows of x (R,C): layer, RMS and group normalisation. Sums use `accumulator`
// in the order of emulation/kernels/reduction.h; everything else is in T.
//   mean = sum x / C (0 when not centred);  inv_std = 1 / sqrt(sum (x - mean)^2 / C + eps)
//   y = (x - mean) * inv_std * w + b;  row r uses the weights of group r mod `groups`; `spatial`
//   consecutive elements of a row share one: w, b (groups * C / spatial), null: 1 and 0
// `statistics`: if not null, PyTorch's CPU kernel for instance_norm, which rounds mean, variance
// and inv_std as batch normalisation does; m is the unrounded mean.
template <typename T>
struct RowNormArgs {
  int64_t rows, cols, groups = 1, spatial = 1;
  double eps;
  bool centred;
  const T *x, *weight, *bias;
  T *y, *mean, *inv_std;  // mean: null when not centred
  const Accumulator* accumulator;
  const Format* statistics = nullptr;
};
// g = dy w;  dx = inv_std / C * ((C g - sum g) - xhat sum(g xhat)), without the sum of g when not
// centred;  dw = sum(dy xhat), db = sum dy over the elements that share the weight.
// `weight_sums`: if not null, the format to which PyTorch's CPU kernel of layer_norm rounds dw and
// db after every row. It adds each of `weight_parts` equal parts of the rows (one per thread) from
// zero, and their sums in T. Requires: groups 1, spatial 1.
template <typename T>
struct RowNormBackwardArgs {
  int64_t rows, cols, groups = 1, spatial = 1;
  bool centred;
  const T *x, *dy, *weight, *mean, *inv_std;
  T *dx, *dweight, *dbias;  // dweight, dbias: null if not needed
  const Accumulator* accumulator;
  const Format* weight_sums = nullptr;
  int64_t weight_parts = 1;
};

}  // namespace lockstep
