// See other_order.h. Each entry reverses copies of its operands and calls the active kernels.
#include "analysis/faithful/other_order.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "emulation/kernels/active_kernels.h"

namespace lockstep {
namespace {

const Kernels<float>& active() {
  return active_kernels().f32;
}

// x (outer, count, inner) with `count` reversed; rows are `stride` elements apart in x, and dense
// in the result.
std::vector<float> reversed(const float* x, int64_t outer, int64_t count, int64_t inner) {
  std::vector<float> out(static_cast<size_t>(outer * count * inner));
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(x + (o * count + count - 1 - i) * inner, inner,
                  out.data() + (o * count + i) * inner);
    }
  }
  return out;
}

// The rows x cols matrix at x, dense.
std::vector<float> dense(const float* x, int64_t rows, int64_t cols, int64_t stride) {
  std::vector<float> out(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r) std::copy_n(x + r * stride, cols, out.data() + r * cols);
  return out;
}

// One factor with k reversed. k_first: its shape is (K, other), else (other, K).
std::vector<float> reversed_factor(const float* x, int64_t k, int64_t other, int64_t stride,
                                   bool k_first) {
  const std::vector<float> packed =
      k_first ? dense(x, k, other, stride) : dense(x, other, k, stride);
  return k_first ? reversed(packed.data(), 1, k, other) : reversed(packed.data(), other, k, 1);
}

void gemm(const GemmArgs<float>& args) {
  const std::vector<float> a = reversed_factor(args.a, args.k, args.m, args.lda, args.transpose_a);
  const std::vector<float> b = reversed_factor(args.b, args.k, args.n, args.ldb, !args.transpose_b);
  GemmArgs<float> other = args;
  other.a = a.data();
  other.lda = args.transpose_a ? args.m : args.k;
  other.b = b.data();
  other.ldb = args.transpose_b ? args.k : args.n;
  active().gemm(other);
}

void conv2d_forward(const ConvArgs<float>& args) {
  const ConvShape& s = args.shape;
  const std::vector<float> x = reversed(args.x, s.batch, s.in_channels, s.in_height * s.in_width);
  const std::vector<float> w =
      reversed(args.w, s.out_channels, s.in_channels, s.kernel_height * s.kernel_width);
  ConvArgs<float> other = args;
  other.x = x.data();
  other.w = w.data();
  active().conv2d_forward(other);
}

void conv2d_backward_input(const ConvArgs<float>& args) {
  const ConvShape& s = args.shape;
  const std::vector<float> dy =
      reversed(args.dy, s.batch, s.out_channels, s.out_height * s.out_width);
  const std::vector<float> w =
      reversed(args.w, 1, s.out_channels, s.in_channels * s.kernel_height * s.kernel_width);
  ConvArgs<float> other = args;
  other.dy = dy.data();
  other.w = w.data();
  active().conv2d_backward_input(other);
}

void conv2d_backward_weight(const ConvArgs<float>& args) {
  const ConvShape& s = args.shape;
  const std::vector<float> x =
      reversed(args.x, 1, s.batch, s.in_channels * s.in_height * s.in_width);
  const std::vector<float> dy =
      reversed(args.dy, 1, s.batch, s.out_channels * s.out_height * s.out_width);
  ConvArgs<float> other = args;
  other.x = x.data();
  other.dy = dy.data();
  active().conv2d_backward_weight(other);
}

void channel_sum(const float* x, float* y, int64_t outer, int64_t channels, int64_t inner,
                 const Accumulator& accumulator) {
  const std::vector<float> other =
      outer > 1 ? reversed(x, 1, outer, channels * inner) : reversed(x, channels, inner, 1);
  active().channel_sum(other.data(), y, outer, channels, inner, accumulator);
}

void row_sums(const float* x, float* y, int64_t rows, int64_t cols,
              const Accumulator& accumulator) {
  active().row_sums(reversed(x, rows, cols, 1).data(), y, rows, cols, accumulator);
}

}  // namespace

const KernelSet& kernels_in_other_order() {
  static std::mutex mutex;
  static std::map<std::string, KernelSet, std::less<>> sets;  // by the name of the active set
  const std::scoped_lock lock(mutex);
  const auto [entry, is_new] =
      sets.try_emplace(std::string(active_kernels().name), active_kernels());
  if (is_new) {
    Kernels<float>& f32 = entry->second.f32;
    f32.gemm = gemm;
    f32.rounded_gemm = nullptr;
    f32.conv2d_forward = conv2d_forward;
    f32.conv2d_backward_input = conv2d_backward_input;
    f32.conv2d_backward_weight = conv2d_backward_weight;
    f32.channel_sum = channel_sum;
    f32.row_sums = row_sums;
  }
  return entry->second;
}

}  // namespace lockstep
