// Every entry of the table.
#include "emulation/kernels/scalar/kernels.h"

#include "emulation/kernels/scalar/convolution/avg_pool2d.h"
#include "emulation/kernels/scalar/convolution/conv2d.h"
#include "emulation/kernels/scalar/convolution/grouped_conv2d.h"
#include "emulation/kernels/scalar/convolution/pool2d.h"
#include "emulation/kernels/scalar/convolution/upsample2d.h"
#include "emulation/kernels/scalar/elements/batch_norm.h"
#include "emulation/kernels/scalar/elements/elementwise.h"
#include "emulation/kernels/scalar/elements/functions.h"
#include "emulation/kernels/scalar/elements/gather.h"
#include "emulation/kernels/scalar/elements/optimizer.h"
#include "emulation/kernels/scalar/elements/pointwise_loss.h"
#include "emulation/kernels/scalar/elements/prelu.h"
#include "emulation/kernels/scalar/elements/reduce.h"
#include "emulation/kernels/scalar/elements/round_state.h"
#include "emulation/kernels/scalar/elements/row_kernels.h"
#include "emulation/kernels/scalar/elements/row_norm.h"
#include "emulation/kernels/scalar/elements/select.h"
#include "emulation/kernels/scalar/elements/strided_copy.h"
#include "emulation/kernels/scalar/elements/whole_array.h"
#include "emulation/kernels/scalar/products/attention.h"
#include "emulation/kernels/scalar/products/gemm.h"
#include "emulation/kernels/scalar/products/recurrent_layers.h"
#include "emulation/kernels/scalar/products/recurrent_rows.h"
#include "emulation/kernels/scalar/products/stacked_gemm.h"
#include "emulation/kernels/scalar/rounding/block_quantize.h"
#include "emulation/kernels/scalar/rounding/block_squares.h"
#include "emulation/kernels/scalar/rounding/compact.h"
#include "emulation/kernels/scalar/rounding/quantize.h"

namespace lockstep {
namespace {

template <typename T>
constexpr MovementKernels<T> kMovement = {strided_copy<T>, pick_rows<T>, pick_elements<T>, fill<T>};

template <typename T>
Kernels<T> make_kernels() {
  Kernels<T> kernels = {
      .quantize = scalar_quantize<T>,
      .quantize_blocks = scalar_quantize_blocks<T>,
      .quantize_block_squares = scalar_quantize_block_squares<T>,
      .finite_abs_max = finite_abs_max<T, scalar_largest_bits<T>>,
      .abs_max = abs_max<T, scalar_largest_bits<T>>,
      .all_finite = all_finite<T, scalar_largest_bits<T>>,
      .sum_of_squares = sum_of_squares<T>,
      .compare = scalar_compare<T>,
      .gemm = scalar_gemm<T>,
      .rounded_gemm = nullptr,
      .stacked_gemm = scalar_stacked_gemm<T>,
      .conv2d_forward = scalar_conv2d_forward<T>,
      .conv2d_backward_input = scalar_conv2d_backward_input<T>,
      .conv2d_backward_weight = scalar_conv2d_backward_weight<T>,
      .grouped_conv2d = grouped_conv2d<T>,
      .channel_sum = scalar_channel_sum<T>,
      .add = scalar_add<T>,
      .mul = scalar_mul<T>,
      .scale = scalar_scale<T>,
      .scale_in_double = scale_in_double<T>,
      .divide = scalar_divide<T>,
      .move_by_one_ulp = move_by_one_ulp<T>,
      .add_channels = scalar_add_channels<T>,
      .relu = scalar_relu<T>,
      .relu_backward = scalar_relu_backward<T>,
      .unary = scalar_unary<T>,
      .unary_backward = scalar_unary_backward<T>,
      .binary = scalar_binary<T>,
      .choice_backward = scalar_choice_backward<T>,
      .div_backward = scalar_div_backward<T>,
      .power = scalar_power<T>,
      .power_backward_base = scalar_power_backward_base<T>,
      .power_backward_exponent = scalar_power_backward_exponent<T>,
      .prelu = scalar_prelu<T>,
      .prelu_backward = scalar_prelu_backward<T>,
      .comparison = scalar_compare<T>,
      .select = scalar_select<T>,
      .masked_scale = scalar_masked_scale<T>,
      .max_pool2d = scalar_max_pool2d<T>,
      .max_pool2d_backward = scalar_max_pool2d_backward<T>,
      .avg_pool2d = avg_pool2d<T>,
      .avg_pool2d_backward = avg_pool2d_backward<T>,
      .upsample_nearest2d = upsample_nearest2d<T>,
      .upsample_nearest2d_backward = upsample_nearest2d_backward<T>,
      .upsample_bilinear2d = upsample_bilinear2d<T>,
      .upsample_bilinear2d_backward = upsample_bilinear2d_backward<T>,
      .movement = kMovement<T>,
      .pick_rows_backward = pick_rows_backward<T>,
      .pick_elements_backward = pick_elements_backward<T>,
      .row = {},
      .row_sums = nullptr,
      .repeat_rows = repeat_rows<T>,
      .row_maxima = row_maxima<T>,
      .row_maxima_backward = row_maxima_backward<T>,
      .row_index_backward = row_index_backward<T>,
      .row_variances = nullptr,
      .row_variances_backward = row_variances_backward<T>,
      .running_sums = running_sums<T>,
      .batch_norm = scalar_batch_norm<T>,
      .batch_norm_backward = scalar_batch_norm_backward<T>,
      .row_norm = scalar_row_norm<T>,
      .row_norm_backward = scalar_row_norm_backward<T>,
      .softmax = nullptr,
      .softmax_backward = nullptr,
      .log_softmax = nullptr,
      .log_softmax_backward = nullptr,
      .logsumexp = nullptr,
      .logsumexp_backward = nullptr,
      .cross_entropy = nullptr,
      .cross_entropy_backward = nullptr,
      .pointwise_loss_terms = pointwise_loss_terms<T>,
      .pointwise_loss_backward = pointwise_loss_backward<T>,
      .attention_forward = attention_forward<T>,
      .attention_backward = attention_backward<T>,
      .recurrent_forward = recurrent_forward<T>,
      .recurrent_backward = recurrent_backward<T>,
      .cell = scalar_cell_functions<T>(),
      .optimizer = scalar_optimizer<T>,
  };
  use_row_functions<T, kScalarRow<T>>(kernels);
  return kernels;
}

}  // namespace

const KernelSet& scalar_kernels() {
  static const KernelSet set = {
      "scalar",
      "plain loops: the definition of every result",
      make_kernels<float>(),
      make_kernels<double>(),
      {kMovement<int32_t>, draw_mask},
      {compact<scalar_to_codes>, expand<scalar_from_codes>, compact_mask<scalar_to_bits>,
       expand_mask<scalar_from_bits>, round_state}};
  return set;
}

}  // namespace lockstep
