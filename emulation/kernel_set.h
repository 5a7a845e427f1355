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

#include "emulation/block_quantize.h"
#include "emulation/dot.h"
#include "emulation/quantize.h"

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

// A product with its roundings and their statistics: see emulation/rounded_gemm.h.
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

// 2-d max pooling. Ties go to the first element in scan order; a NaN wins; padding never does.
struct PoolShape {
  int64_t batch, channels, in_height, in_width, out_height, out_width;
  int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h = 0, pad_w = 0;
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
  // y[c] = sum over (o, i) of x[o,c,i], x (O,C,I), in the order of emulation/reduction.h
  void (*channel_sum)(const T* x, T* y, int64_t outer, int64_t channels, int64_t inner,
                      const Accumulator&);
  // elementwise
  void (*add)(const T* a, const T* b, T* y, int64_t count);
  void (*mul)(const T* a, const T* b, T* y, int64_t count);
  void (*scale)(const T* x, T factor, T* y, int64_t count);
  void (*relu)(const T* x, T* y, int64_t count);                         // NaN stays NaN
  void (*relu_backward)(const T* x, const T* dy, T* dx, int64_t count);  // 0 at x == 0
  // windows
  void (*max_pool2d)(const PoolShape&, const T* x, T* y, int32_t* argmax);  // argmax: h*W + w
  void (*max_pool2d_backward)(const PoolShape&, const T* dy, const int32_t* argmax, T* dx);
  // normalisation and losses
  void (*batch_norm)(const BatchNormArgs<T>&);
  void (*batch_norm_backward)(const BatchNormBackwardArgs<T>&);
  // softmax over the last axis of (R,C); backward dx = y * (dy - sum(dy * y))
  void (*softmax)(const T* x, T* y, int64_t rows, int64_t cols, const Accumulator&);
  void (*softmax_backward)(const T* y, const T* dy, T* dx, int64_t rows, int64_t cols,
                           const Accumulator&);
  // mean over rows of logsumexp(x) - x[target]; target in [0, cols) (checked by the caller)
  void (*cross_entropy)(const T* x, const int32_t* target, T* loss, int64_t rows, int64_t cols,
                        const Accumulator&);
  // dx = (softmax(x) - onehot(target)) * dloss / rows
  void (*cross_entropy_backward)(const T* x, const int32_t* target, T dloss, T* dx, int64_t rows,
                                 int64_t cols, const Accumulator&);
  void (*mse_loss)(const T* x, const T* target, T* loss, int64_t count, const Accumulator&);
  void (*mse_loss_backward)(const T* x, const T* target, T dloss, T* dx, int64_t count);
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
