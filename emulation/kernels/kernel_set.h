// The kernels that an engine supplies.
// A kernel set is a table of functions, arrays in and arrays out. `scalar` defines every result
// with plain loops; `simd` replaces entries and equals it bit for bit. Few kernels round outputs to
// a format: quantize does, so that values can be measured before rounding. Sums use the accumulator
// they are given. The argument structs are in one header per theme (gemm_args.h, conv_args.h, ...);
// active_kernels.h lists the sets.
// Every computation on the elements of a lane's tensors is an entry, from the ops to the optimizer,
// and runs on the set of the lane's engine. Not entries: plain copies and zeroing, conversions
// between containers, checks of integer operands, and the exact recomputation of sampled sums.
// T is float (software lanes) or double (the truth lane). All arrays are dense and row-major.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "emulation/accumulator/dot.h"
#include "emulation/format/state_codes.h"
#include "emulation/kernels/args/block_spec.h"
#include "emulation/kernels/args/compact_form.h"
#include "emulation/kernels/args/conv_args.h"
#include "emulation/kernels/args/device_work.h"
#include "emulation/kernels/args/elementwise_args.h"
#include "emulation/kernels/args/gemm_args.h"
#include "emulation/kernels/args/loss_args.h"
#include "emulation/kernels/args/movement_args.h"
#include "emulation/kernels/args/norm_args.h"
#include "emulation/kernels/args/optimizer_args.h"
#include "emulation/kernels/args/pool_args.h"
#include "emulation/kernels/args/quantize_spec.h"
#include "emulation/kernels/args/upsample_args.h"
#include "emulation/kernels/optimizer_rules.h"
#include "emulation/math/elementwise_functions.h"
#include "src/core/random.h"

namespace lockstep {

// Kernels of several parts; their arguments name the set they use: attention_args.h,
// recurrent_args.h.
template <typename T>
struct AttentionForward;
template <typename T>
struct AttentionBackward;
template <typename T>
struct RecurrentForward;
template <typename T>
struct RecurrentBackward;
template <typename T>
struct RecurrentStep;  // of a cell: scalar/products/recurrent.h
template <typename T>
struct RecurrentStepBackward;

// The parts of kernels over rows (softmax, sums, norms). They run on the calling thread.
template <typename T>
struct RowFunctions {
  // Sum of at most 4096 terms: one block of emulation/kernels/reduction.h.
  double (*block_sum)(const T* terms, int64_t count, const Accumulator&);
  void (*exp)(const T* x, T* y, int64_t count);  // y may be x
  void (*log)(const T* x, T* y, int64_t count);
};

template <typename T>
struct Kernels;

// One row of the batch through a recurrent cell, with the sigmoids and tanhs of the set passed as
// an argument. They run on the calling thread.
template <typename T>
struct CellFunctions {
  void (*lstm)(const Kernels<T>&, const RecurrentStep<T>&);
  void (*lstm_backward)(const Kernels<T>&, const RecurrentStepBackward<T>&);
  void (*gru)(const Kernels<T>&, const RecurrentStep<T>&);
  void (*gru_backward)(const RecurrentStepBackward<T>&);
};

// Moves elements of any type without rounding.
template <typename T>
struct MovementKernels {
  void (*strided_copy)(const std::vector<StridedDim>&, const T* x, T* y);
  void (*pick_rows)(const RowPick&, const T* x, T* y);
  void (*pick_elements)(const ElementPick&, const T* x, T* y);
  void (*fill)(T value, T* y, int64_t count);
};

template <typename T>
struct Kernels {
  // rounding and measuring (see quantize.h)
  void (*quantize)(const T* before, T* after, int64_t count, const QuantizeSpec&, TensorStats*);
  // Quantizes in place as `fill` writes piece by piece, while values are in cache. Null: all are
  // filled, then quantized. A set with its own quantize must not inherit this.
  void (*fill_and_quantize)(const FillRange& fill, T* values, int64_t count, const QuantizeSpec&,
                            TensorStats*) = nullptr;
  // block formats (see block_quantize.h); tensor_scale is 1 where the format has none
  void (*quantize_blocks)(const T* before, T* after, const BlockShape&, const BlockQuantizeSpec&,
                          T tensor_scale, TensorStats*, uint8_t* codes);
  // block_size x block_size neighbours share one scale; the tensor's scale is 1
  void (*quantize_block_squares)(const T* before, T* after, int64_t rows, int64_t cols,
                                 const BlockQuantizeSpec&, TensorStats*);
  T (*finite_abs_max)(const T* x, int64_t count);  // 0 if no element is finite
  T (*abs_max)(const T* x, int64_t count);         // infinities count, NaN does not; 0 if none
  bool (*all_finite)(const T* x, int64_t count);
  // in double, one element after the other
  double (*sum_of_squares)(const T* x, int64_t count);
  void (*compare)(const T* lane, const float* reference, int64_t count, double scale,
                  const Format& lane_format, ErrorStats*);
  // sums of products
  void (*gemm)(const GemmArgs<T>&);
  // Null: in passes, see rounded_gemm.h. A set with its own gemm must not inherit this one.
  void (*rounded_gemm)(const RoundedGemmArgs<T>&) = nullptr;
  // stacked_gemm, grouped_conv2d: the passed set supplies the single products, convolutions.
  void (*stacked_gemm)(const Kernels<T>&, const StackedGemm<T>&);
  void (*conv2d_forward)(const ConvArgs<T>&);
  void (*conv2d_backward_input)(const ConvArgs<T>&);
  void (*conv2d_backward_weight)(const ConvArgs<T>&);
  // args: of the whole convolution, w (O, C/groups, R, S); groups divides both numbers of channels
  void (*grouped_conv2d)(const Kernels<T>&, ConvPass, const ConvArgs<T>&, int64_t groups);
  // y[c] = sum over (o, i) of x[o,c,i], x (O,C,I), in the order of emulation/kernels/reduction.h
  void (*channel_sum)(const T* x, T* y, int64_t outer, int64_t channels, int64_t inner,
                      const Accumulator&);
  // elementwise
  void (*add)(const T* a, const T* b, T* y, int64_t count);
  void (*mul)(const T* a, const T* b, T* y, int64_t count);
  void (*scale)(const T* x, T factor, T* y, int64_t count);
  // the product is formed in double and rounded to T
  void (*scale_in_double)(const T* x, double factor, T* y, int64_t count);
  void (*divide)(const T* x, T divisor, T* y, int64_t count);
  // every element but zeros and non-finite ones, by the sign of draw `first` + i
  void (*move_by_one_ulp)(T* x, const RandomStream& signs, uint64_t first, int64_t count);
  // y (N,C,plane) += b (C)
  void (*add_channels)(T* y, const T* b, int64_t batch, int64_t channels, int64_t plane);
  void (*relu)(const T* x, T* y, int64_t count);                         // NaN stays NaN
  void (*relu_backward)(const T* y, const T* dy, T* dx, int64_t count);  // 0 at y == 0
  UnaryKernel<T> unary;
  UnaryBackwardKernel<T> unary_backward;
  BinaryKernel<T> binary;
  // of minimum (sign +1) and maximum (-1): all of dy to the chosen one, half to each if they are
  // equal, all to both if one is NaN
  void (*choice_backward)(T sign, const T* own, const T* other, const T* dy, T* dx, int64_t count);
  void (*div_backward)(const T* a, const T* b, const T* dy, T* db, int64_t count);
  void (*power)(const T* x, const T* e, T* y, int64_t count);
  void (*power_backward_base)(const T* x, const T* e, const T* dy, T* dx, int64_t count);
  void (*power_backward_exponent)(const T* x, const T* e, const T* y, const T* dy, T* de,
                                  int64_t count);
  // y = x where x > 0, else w x;  the sum of dw_terms is dw
  void (*prelu)(const PreluShape&, const T* x, const T* w, T* y);
  void (*prelu_backward)(const PreluShape&, const T* x, const T* w, const T* dy, T* dx,
                         T* dw_terms);
  // mask[i] = 1 where a[i] and b[i] compare so, else 0
  void (*comparison)(Relation, const T* a, const T* b, int32_t* mask, int64_t count);
  // y = condition ? a : b; a null a or b means `constant`
  void (*select)(const int32_t* condition, const T* a, const T* b, T constant, T* y, int64_t count);
  // y = mask ? x * scale : x * 0
  void (*masked_scale)(const T* x, const int32_t* mask, T scale, T* y, int64_t count);
  // windows; max pooling: ties go to the first element in scan order; a NaN wins; padding never
  // does
  void (*max_pool2d)(const PoolShape&, const T* x, T* y, int32_t* argmax);  // argmax: h*W + w
  void (*max_pool2d_backward)(const PoolShape&, const T* dy, const int32_t* argmax, T* dx);
  void (*avg_pool2d)(const AvgPool&, const T* x, T* y, const Accumulator&);
  void (*avg_pool2d_backward)(const AvgPool&, const T* dy, T* dx, const Accumulator&);
  void (*upsample_nearest2d)(const UpsampleShape&, const std::vector<int64_t>& rows,
                             const std::vector<int64_t>& columns, const T* x, T* y);
  void (*upsample_nearest2d_backward)(const UpsampleShape&, const std::vector<int64_t>& rows,
                                      const std::vector<int64_t>& columns, const T* dy, T* dx,
                                      const Accumulator&);
  void (*upsample_bilinear2d)(const UpsampleShape&, const std::vector<AxisSample<T>>& rows,
                              const std::vector<AxisSample<T>>& columns, const T* x, T* y);
  void (*upsample_bilinear2d_backward)(const UpsampleShape&, const std::vector<AxisSample<T>>& rows,
                                       const std::vector<AxisSample<T>>& columns, const T* dy,
                                       T* dx, const Accumulator&);
  // movement; gradients of picked rows and elements are sums
  MovementKernels<T> movement;
  void (*pick_rows_backward)(const RowPick&, const T* dy, T* dx, const Accumulator&);
  void (*pick_elements_backward)(const ElementPick&, const T* dy, T* dx, const Accumulator&);
  // reductions of the rows of x (R,C) to one number each; formulas: scalar/elements/rows.h
  RowFunctions<T> row;
  void (*row_sums)(const T* x, T* y, int64_t rows, int64_t cols, const Accumulator&);
  void (*repeat_rows)(const T* y, T divisor, T* x, int64_t rows, int64_t cols);
  void (*row_maxima)(const T* x, T* y, int32_t* index, int64_t rows, int64_t cols);
  void (*row_maxima_backward)(const T* x, const T* y, const T* dy, T* dx, int64_t rows,
                              int64_t cols);
  void (*row_index_backward)(const int32_t* index, const T* dy, T* dx, int64_t rows, int64_t cols);
  void (*row_variances)(const T* x, double correction, T* var, T* mean, int64_t rows, int64_t cols,
                        const Accumulator&);
  void (*row_variances_backward)(const T* x, const T* mean, const T* dvar, const T* dmean,
                                 double correction, T* dx, int64_t rows, int64_t cols);
  void (*running_sums)(const T* x, bool reversed, T* y, int64_t rows, int64_t cols,
                       const Accumulator&);
  // normalisation and losses
  void (*batch_norm)(const BatchNormArgs<T>&);
  void (*batch_norm_backward)(const BatchNormBackwardArgs<T>&);
  void (*row_norm)(const RowNormArgs<T>&);
  void (*row_norm_backward)(const RowNormBackwardArgs<T>&);
  // softmax over the last axis of (R,C); backward dx = y * (dy - sum(dy * y))
  void (*softmax)(const T* x, T* y, int64_t rows, int64_t cols, const Accumulator&);
  void (*softmax_backward)(const T* y, const T* dy, T* dx, int64_t rows, int64_t cols,
                           const Accumulator&);
  // y = x - log(sum exp x), backward dx = dy - exp(y) * sum(dy); shapes as softmax. `parts`: the
  // rounding of the sum and of its logarithm, or null
  void (*log_softmax)(const T* x, T* y, int64_t rows, int64_t cols, const Accumulator&,
                      const Format* parts);
  void (*log_softmax_backward)(const T* y, const T* dy, T* dx, int64_t rows, int64_t cols,
                               const Accumulator&);
  // y (R) = log(sum exp x), backward dx = dy exp(x - y); `parts`: the rounding of every operation
  // except the last, or null
  void (*logsumexp)(const T* x, T* y, int64_t rows, int64_t cols, const Accumulator&,
                    const Format* parts);
  void (*logsumexp_backward)(const T* x, const T* y, const T* dy, T* dx, int64_t rows, int64_t cols,
                             const Format* parts);
  void (*cross_entropy)(const CrossEntropyArgs<T>&);
  void (*cross_entropy_backward)(const CrossEntropyArgs<T>&);
  void (*pointwise_loss_terms)(const PointwiseLossArgs<T>&, T* terms);
  void (*pointwise_loss_backward)(const PointwiseLossArgs<T>&, LossOperand, const T* dloss,
                                  int64_t dloss_stride, T* d);
  // kernels of several parts
  void (*attention_forward)(const AttentionForward<T>&);
  void (*attention_backward)(const AttentionBackward<T>&);
  void (*recurrent_forward)(const RecurrentForward<T>&);
  void (*recurrent_backward)(const RecurrentBackward<T>&);
  CellFunctions<T> cell;
  // one parameter's update; `stats` may be null
  void (*optimizer)(const UpdateRule&, const OptimizerArrays<T>&, UpdateStats* stats);
};

// Kernels for indices and masks.
struct IntegerKernels {
  MovementKernels<int32_t> movement;
  // mask[i] = 1 with probability `keep`, see scalar/elements/select.h
  void (*draw_mask)(const RandomStream&, uint64_t step, double keep, int32_t* mask, int64_t count);
};

// Kernels that store numbers compactly while nothing reads them. The compact side has
// compact_bytes(form, count).
struct CompactKernels {
  // Requires: values of a format with this form (compact_form), which is not kBit.
  void (*compact)(CompactForm form, const float* from, int64_t count, uint8_t* to);
  void (*expand)(CompactForm form, const uint8_t* from, int64_t count, float* to);
  // kBit: 1 where the mask is not 0
  void (*compact_mask)(const int32_t* from, int64_t count, uint8_t* to);
  void (*expand_mask)(const uint8_t* from, int64_t count, int32_t* to);
  // An optimizer state as its codes hold it, in place; `stats`, of values before as FP32, may be
  // null. Requires: codes.encodes(count).
  void (*round_state)(float* values, int64_t count, const StateCodes& codes, bool is_signed,
                      TensorStats* stats);
};

struct KernelSet {
  std::string_view name;  // "scalar", "avx2", "avx512", "cpu"
  std::string_view help;
  Kernels<float> f32;
  Kernels<double> f64;
  IntegerKernels i32;
  CompactKernels compact;
  // Some of its work goes to a device, which one thread feeds.
  bool uses_device = false;
  // What that device has done since the last call; null: not counted.
  DeviceWork (*take_device_work)() = nullptr;
  template <typename T>
  const Kernels<T>& of() const;
  template <typename T>
  const MovementKernels<T>& movement() const {
    return of<T>().movement;
  }
};
template <>
inline const Kernels<float>& KernelSet::of<float>() const {
  return f32;
}
template <>
inline const Kernels<double>& KernelSet::of<double>() const {
  return f64;
}
template <>
inline const MovementKernels<int32_t>& KernelSet::movement<int32_t>() const {
  return i32.movement;
}

}  // namespace lockstep
