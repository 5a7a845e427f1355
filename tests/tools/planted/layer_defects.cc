// Defects of what layers compute.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/tools/planted/defect.h"

namespace lockstep {
namespace {

// The running variance takes the batch's variance with n in place of n - 1.
template <typename T>
void batch_norm_biased(const BatchNormArgs<T>& args) {
  true_kernels_of<T>().batch_norm(args);
  if (!args.training || args.new_running_var == nullptr || args.running_var == nullptr) return;
  const T n = static_cast<T>(args.batch * args.spatial);
  for (int64_t c = 0; c < args.channels; ++c) {
    const T kept = static_cast<T>(1 - args.momentum) * args.running_var[c];
    args.new_running_var[c] = kept + (args.new_running_var[c] - kept) * ((n - 1) / n);
  }
}

// 1 / std of layer normalisation with C - 1 in place of C.
template <typename T>
void row_norm_unbiased(const RowNormArgs<T>& args) {
  true_kernels_of<T>().row_norm(args);
  if (!args.centred || args.groups != 1 || args.spatial != 1) return;
  const T by = static_cast<T>(args.cols) / static_cast<T>(args.cols - 1);
  const T eps = static_cast<T>(args.eps);
  for (int64_t r = 0; r < args.rows; ++r) {
    const T variance = 1 / (args.inv_std[r] * args.inv_std[r]) - eps;
    args.inv_std[r] = 1 / std::sqrt(variance * by + eps);
    for (int64_t c = 0; c < args.cols; ++c) {
      const int64_t i = r * args.cols + c;
      args.y[i] = (args.x[i] - args.mean[r]) * args.inv_std[r] *
                      (args.weight == nullptr ? 1 : args.weight[c]) +
                  (args.bias == nullptr ? 0 : args.bias[c]);
    }
  }
}

// The last column of a padded image is not read.
template <typename T>
void convolve_without_border(const ConvArgs<T>& args) {
  const ConvShape& s = args.shape;
  const int64_t rows = s.batch * s.in_channels * s.in_height;
  std::vector<T> x(args.x, args.x + rows * s.in_width);
  for (int64_t r = 0; r < rows; ++r) x[r * s.in_width + s.in_width - 1] = 0;
  ConvArgs<T> wrong = args;
  wrong.x = x.data();
  true_kernels_of<T>().conv2d_forward(wrong);
}

// The kernel's last column does not take part in the gradient of the input.
template <typename T>
void convolve_back_without_tap(const ConvArgs<T>& args) {
  const ConvShape& s = args.shape;
  const int64_t rows = s.out_channels * s.in_channels * s.kernel_height;
  std::vector<T> w(args.w, args.w + rows * s.kernel_width);
  for (int64_t r = 0; r < rows; ++r) w[r * s.kernel_width + s.kernel_width - 1] = 0;
  ConvArgs<T> wrong = args;
  wrong.w = w.data();
  true_kernels_of<T>().conv2d_backward_input(wrong);
}

template <typename T>
void relu_backward_open_at_zero(const T* x, const T* dy, T* dx, int64_t count) {
  true_kernels_of<T>().relu_backward(x, dy, dx, count);
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] == 0) dx[i] = dy[i];
  }
}

template <typename T>
void unary_with_tanh_gelu(Unary function, const FunctionParameters& parameters, const T* x, T* y,
                          int64_t count) {
  true_kernels_of<T>().unary(function == Unary::kGelu ? Unary::kGeluTanh : function, parameters, x,
                             y, count);
}

// exp(x) / sum exp(x): overflows from x = 89.
template <typename T>
void softmax_unshifted(const T* x, T* y, int64_t rows, int64_t cols,
                       const Accumulator& accumulator) {
  const Kernels<T>& good = true_kernels_of<T>();
  good.row.exp(x, y, rows * cols);
  std::vector<T> sums(static_cast<size_t>(rows));
  good.row_sums(y, sums.data(), rows, cols, accumulator);
  for (int64_t i = 0; i < rows * cols; ++i) y[i] /= sums[i / cols];
}

// The sum leaves out the first column of every row.
template <typename T>
void softmax_short(const T* x, T* y, int64_t rows, int64_t cols, const Accumulator& accumulator) {
  true_kernels_of<T>().softmax(x, y, rows, cols, accumulator);
  for (int64_t r = 0; r < rows; ++r) {
    T* row = y + r * cols;
    const T rest = 1 - row[0];
    if (rest <= 0) continue;
    for (int64_t c = 0; c < cols; ++c) row[c] /= rest;
  }
}

// p in place of 1 / (1 - p).
template <typename T>
void dropout_scaled_by_p(const T* x, const int32_t* mask, T scale, T* y, int64_t count) {
  true_kernels_of<T>().masked_scale(x, mask, scale > 1 ? 1 - 1 / scale : scale, y, count);
}

// Only the last of the rows with one index gives its gradient.
template <typename T>
void embedding_gradient_overwritten(const RowPick& pick, const T* dy, T* dx, const Accumulator&) {
  std::fill(dx, dx + pick.outer * pick.rows * pick.inner, T(0));
  for (int64_t o = 0; o < pick.outer; ++o) {
    for (int64_t j = 0; j < pick.count; ++j) {
      if (pick.index[j] == pick.skip) continue;
      std::copy_n(dy + (o * pick.count + j) * pick.inner, pick.inner,
                  dx + (o * pick.rows + pick.index[j]) * pick.inner);
    }
  }
}

constexpr Defect kDefects[] = {
    {"biased_variance", "batch_norm's running variance is the biased one",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) { k.batch_norm = batch_norm_biased<T>; });
     }},
    {"unbiased_variance", "layer_norm divides by the unbiased deviation",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) { k.row_norm = row_norm_unbiased<T>; });
     }},
    {"conv_border", "convolutions do not read the last column of their input",
     [](KernelSet& set) {
       plant_in_both(
           set, []<typename T>(Kernels<T>& k) { k.conv2d_forward = convolve_without_border<T>; });
     }},
    {"conv_backward_tap", "a convolution's input gradient lacks the kernel's last column",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) {
         k.conv2d_backward_input = convolve_back_without_tap<T>;
       });
     }},
    {"relu_gradient_at_zero", "relu passes gradients at 0",
     [](KernelSet& set) {
       plant_in_both(
           set, []<typename T>(Kernels<T>& k) { k.relu_backward = relu_backward_open_at_zero<T>; });
     }},
    {"tanh_gelu", "gelu is its approximation by tanh",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) { k.unary = unary_with_tanh_gelu<T>; });
     }},
    {"unshifted_softmax", "softmax does not subtract the maximum",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) { k.softmax = softmax_unshifted<T>; });
     }},
    {"short_softmax", "softmax's sum lacks the first column",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) { k.softmax = softmax_short<T>; });
     }},
    {"dropout_scaled_by_p", "dropout multiplies by p in place of 1 / (1 - p)",
     [](KernelSet& set) {
       plant_in_both(set,
                     []<typename T>(Kernels<T>& k) { k.masked_scale = dropout_scaled_by_p<T>; });
     }},
    {"overwritten_embedding_gradient", "rows that are picked twice get one gradient",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) {
         k.pick_rows_backward = embedding_gradient_overwritten<T>;
       });
     }},
};

}  // namespace

std::span<const Defect> layer_defects() {
  return kDefects;
}

}  // namespace lockstep
