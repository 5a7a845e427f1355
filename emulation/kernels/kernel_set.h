// Which kernels does an engine supply?
// A kernel set is a table of functions, arrays in and arrays out. `scalar` defines every result
// with plain loops; `simd` replaces entries and equals it bit for bit. No kernel rounds its output
// to a format: that is quantize's work, so that the value before rounding can be measured. Sums go
// through the accumulator they are given.
// T is float (software lanes) or double (the truth lane). All arrays are dense and row-major.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "emulation/accumulator/dot.h"
#include "emulation/kernels/block_quantize.h"
#include "emulation/kernels/quantize.h"
#include "emulation/math/elementwise_functions.h"

namespace lockstep {

// C[m,n] = sum over k ascending of op(A)[m,k] * op(B)[k,n], starting from 0, or from C.
// Shapes: A (M,K) or, transposed, (K,M); B (K,N) or, transposed, (N,K); C (M,N); ld*: row strides.
template <typename T>
struct GemmArgs {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;
  int64_t lda = 0;
  const T* b = nullptr;
  int64_t ldb = 0;
  T* c = nullptr;
  int64_t ldc = 0;
  bool start_from_c = false;  // false: the chain starts from +0
  const Accumulator* accumulator = nullptr;
  const Format* a_format = nullptr;  // of A's and B's values, where the accumulator takes several
  const Format* b_format = nullptr;  // (see DotOperands); null: its only one
  uint8_t* events = nullptr;         // (M,N) dense sticky AccumulatorEvents, or null; OR-ed into
};

// A product with its roundings and their statistics: see emulation/kernels/rounded_gemm.h.
struct GemmRounding {
  QuantizeSpec spec;             // without a format: the array is neither rounded nor measured
  TensorStats* stats = nullptr;  // null: only rounded
};
template <typename T>
struct RoundedGemmArgs {
  GemmArgs<T> product;
  GemmRounding a, b, c;
};

// 2-d convolution, cross-correlation as in the field. Zero padding on both sides.
struct ConvShape {
  int64_t batch, in_channels, in_height, in_width;
  int64_t out_channels, kernel_height, kernel_width;
  int64_t out_height, out_width;
  int64_t stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dilation_h = 1, dilation_w = 1;
};

// y (N,O,P,Q), x (N,C,H,W), w (O,C,R,S). The sum behind each output runs over, ascending:
//   forward          y:  (c, r, s)
//   backward_input   dx: (o, r, s), over the (o, r, s) that touch the pixel, others adding zero
//   backward_weight  dw: (n, p, q)
template <typename T>
struct ConvArgs {
  ConvShape shape;
  const T* x = nullptr;   // forward, backward_weight
  const T* w = nullptr;   // forward, backward_input
  const T* dy = nullptr;  // backward_input, backward_weight
  T* out = nullptr;       // y, dx or dw
  const Accumulator* accumulator = nullptr;
  const Format *x_format = nullptr, *w_format = nullptr, *dy_format = nullptr;  // as GemmArgs
  uint8_t* events = nullptr;  // as GemmArgs, shape of out
};

// Windows of 2-d pooling. pad_h, pad_w: above and left; what the last windows need below and on the
// right follows from the output's extents.
struct PoolShape {
  int64_t batch, channels, in_height, in_width, out_height, out_width;
  int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h = 0, pad_w = 0;
  int64_t dilation_h = 1, dilation_w = 1;
};

// Batch normalisation over (N, S) of x (N,C,S). Sums go through `accumulator`, the rest is T.
//   mean = sum x / n;  var = sum (x - mean)^2 / n (two passes);  y = (x - mean) * inv_std * w + b
//   inv_std = 1 / sqrt(var + eps)
// Running statistics: new = (1 - momentum) * old + momentum * batch, with the unbiased variance
// (n / (n-1)). Evaluation mode uses the running ones and leaves them.
template <typename T>
struct BatchNormArgs {
  int64_t batch, channels, spatial;
  double eps, momentum;
  bool training;
  const T *x, *weight, *bias, *running_mean, *running_var;  // running_*: may be null when training
  T *y, *new_running_mean, *new_running_var, *mean, *inv_std;
  const Accumulator* accumulator;
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

// Normalisation of the rows of x (R,C): layer, RMS and group normalisation. Sums go through
// `accumulator` in the order of emulation/kernels/reduction.h, the rest is T.
//   mean = sum x / C (0 when not centred);  inv_std = 1 / sqrt(sum (x - mean)^2 / C + eps)
//   y = (x - mean) * inv_std * w + b;  row r takes the weights of group r mod `groups`, and
//   `spatial` consecutive elements of a row share one: w, b (groups * C / spatial), null: 1 and 0
template <typename T>
struct RowNormArgs {
  int64_t rows, cols, groups = 1, spatial = 1;
  double eps;
  bool centred;
  const T *x, *weight, *bias;
  T *y, *mean, *inv_std;  // mean: null when not centred
  const Accumulator* accumulator;
};
// g = dy w;  dx = inv_std / C * ((C g - sum g) - xhat sum(g xhat)), without the sum of g when not
// centred;  dw = sum(dy xhat), db = sum dy over what shares the weight.
template <typename T>
struct RowNormBackwardArgs {
  int64_t rows, cols, groups = 1, spatial = 1;
  bool centred;
  const T *x, *dy, *weight, *mean, *inv_std;
  T *dx, *dweight, *dbias;  // dweight, dbias: null when not wanted
  const Accumulator* accumulator;
};

// What kernels over rows (softmax, sums, norms) are made of. They run on the calling thread.
template <typename T>
struct RowFunctions {
  // Sum of at most 4096 terms: one block of emulation/kernels/reduction.h.
  double (*block_sum)(const T* terms, int64_t count, const Accumulator&);
  void (*exp)(const T* x, T* y, int64_t count);  // y may be x
  void (*log)(const T* x, T* y, int64_t count);
};

// What becomes of the losses of single rows or elements.
enum class LossReduction : uint8_t { kMean, kSum, kNone };

// Cross entropy of x (N,C,S) against class numbers (N,S); a row is one (n, s) over its C classes.
//   lse    = log sum over c of exp(x[c] - max)
//   nll    = w[t] (lse + (max - x[t]))
//   smooth = sum over c of w[c] (lse + (max - x[c]))                      w: class weights or 1
//   row    = (1 - label_smoothing) nll + label_smoothing / C smooth,      0 where t == ignore_index
//   loss   = sum of rows / (sum of w[t] over rows not ignored)            kMean: NaN where none is
//   dx[c]  = (softmax(x)[c] k - label_smoothing / C w[c] - (1 - label_smoothing) w[t] [c == t]) g,
//            k = (1 - label_smoothing) w[t] + label_smoothing / C sum w,  g = dloss / divisor
// Requires: every target is ignore_index or in [0, C) (checked by the caller).
template <typename T>
struct CrossEntropyArgs {
  int64_t batch, classes, spatial = 1;
  const T* x = nullptr;
  const int32_t* target = nullptr;
  const T* class_weight = nullptr;  // (C), or null: all 1
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  LossReduction reduction = LossReduction::kMean;
  const T* dloss = nullptr;  // backward: a scalar; kNone: (N,S)
  T* out = nullptr;          // the loss, a scalar or (N,S); backward: dx (N,C,S)
  const Accumulator* accumulator = nullptr;
};

template <typename T>
struct Kernels {
  // rounding and measuring (see quantize.h)
  void (*quantize)(const T* before, T* after, int64_t count, const QuantizeSpec&, TensorStats*);
  // block formats (see block_quantize.h); tensor_scale is 1 where the format has none
  void (*quantize_blocks)(const T* before, T* after, const BlockShape&, const BlockQuantizeSpec&,
                          T tensor_scale, TensorStats*, uint8_t* codes);
  T (*finite_abs_max)(const T* x, int64_t count);
  void (*compare)(const T* lane, const float* reference, int64_t count, double scale,
                  const Format& lane_format, ErrorStats*);
  // sums of products
  void (*gemm)(const GemmArgs<T>&);
  // Null: in passes, see rounded_gemm.h. A set with a gemm of its own must not inherit this one.
  void (*rounded_gemm)(const RoundedGemmArgs<T>&) = nullptr;
  void (*conv2d_forward)(const ConvArgs<T>&);
  void (*conv2d_backward_input)(const ConvArgs<T>&);
  void (*conv2d_backward_weight)(const ConvArgs<T>&);
  // y[c] = sum over (o, i) of x[o,c,i], x (O,C,I), in the order of emulation/kernels/reduction.h
  void (*channel_sum)(const T* x, T* y, int64_t outer, int64_t channels, int64_t inner,
                      const Accumulator&);
  // elementwise
  void (*add)(const T* a, const T* b, T* y, int64_t count);
  void (*mul)(const T* a, const T* b, T* y, int64_t count);
  void (*scale)(const T* x, T factor, T* y, int64_t count);
  void (*relu)(const T* x, T* y, int64_t count);                         // NaN stays NaN
  void (*relu_backward)(const T* x, const T* dy, T* dx, int64_t count);  // 0 at x == 0
  UnaryKernel<T> unary;
  UnaryBackwardKernel<T> unary_backward;
  BinaryKernel<T> binary;
  // windows; max pooling: ties go to the first element in scan order; a NaN wins; padding never
  // does
  void (*max_pool2d)(const PoolShape&, const T* x, T* y, int32_t* argmax);  // argmax: h*W + w
  void (*max_pool2d_backward)(const PoolShape&, const T* dy, const int32_t* argmax, T* dx);
  // normalisation and losses
  RowFunctions<T> row;
  void (*batch_norm)(const BatchNormArgs<T>&);
  void (*batch_norm_backward)(const BatchNormBackwardArgs<T>&);
  void (*row_norm)(const RowNormArgs<T>&);
  void (*row_norm_backward)(const RowNormBackwardArgs<T>&);
  // softmax over the last axis of (R,C); backward dx = y * (dy - sum(dy * y))
  void (*softmax)(const T* x, T* y, int64_t rows, int64_t cols, const Accumulator&);
  void (*softmax_backward)(const T* y, const T* dy, T* dx, int64_t rows, int64_t cols,
                           const Accumulator&);
  // y = x - log(sum exp x), backward dx = dy - exp(y) * sum(dy); shapes as softmax
  void (*log_softmax)(const T* x, T* y, int64_t rows, int64_t cols, const Accumulator&);
  void (*log_softmax_backward)(const T* y, const T* dy, T* dx, int64_t rows, int64_t cols,
                               const Accumulator&);
  void (*cross_entropy)(const CrossEntropyArgs<T>&);
  void (*cross_entropy_backward)(const CrossEntropyArgs<T>&);
};

struct KernelSet {
  std::string_view name;  // "scalar", "avx2", "avx512"
  std::string_view help;
  Kernels<float> f32;
  Kernels<double> f64;
  template <typename T>
  const Kernels<T>& of() const;
};
template <>
inline const Kernels<float>& KernelSet::of<float>() const {
  return f32;
}
template <>
inline const Kernels<double>& KernelSet::of<double>() const {
  return f64;
}

const KernelSet& scalar_kernels();
// The sets this machine can run, slowest first: scalar, then avx2 and avx512 where the CPU has
// them.
std::span<const KernelSet* const> available_kernel_sets();
// The set in use: the fastest available, or the one chosen by name.
const KernelSet& active_kernels();
// Throws: InputError when the name is unknown or this CPU lacks it.
void select_kernels(std::string_view name);

// The `cpu` engine: the set in use, with the conversions and sums of products that the CPU's own
// units compute done by those (emulation/cpu/). No set of the software engine: what it gives is the
// hardware's.
const KernelSet& cpu_engine_kernels();

}  // namespace lockstep
