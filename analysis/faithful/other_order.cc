// See other_order.h. Each entry reorders copies of its operands and calls the active kernels.
#include "analysis/faithful/other_order.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "emulation/kernels/active_kernels.h"

namespace lockstep {
namespace {

const Kernels<float>& active() {
  return active_kernels().f32;
}

// The place in the given array of term i of `count` in an order.
int64_t place(int order, int64_t i, int64_t count) {
  const int64_t moved = (i + count * order / kOtherOrders) % count;
  return order % 2 == 0 ? count - 1 - moved : moved;
}

// x (outer, count, inner) with the `count` slices in another order.
std::vector<float> reordered(int order, const float* x, int64_t outer, int64_t count,
                             int64_t inner) {
  std::vector<float> out(static_cast<size_t>(outer * count * inner));
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(x + (o * count + place(order, i, count)) * inner, inner,
                  out.data() + (o * count + i) * inner);
    }
  }
  return out;
}

// A factor's matrix with k in another order, dense. k_first: its shape is (K, other), else
// (other, K).
std::vector<float> reordered_factor(int order, const float* x, int64_t k, int64_t other,
                                    int64_t stride, bool k_first) {
  const int64_t rows = k_first ? k : other, cols = k_first ? other : k;
  std::vector<float> dense(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r) std::copy_n(x + r * stride, cols, dense.data() + r * cols);
  return k_first ? reordered(order, dense.data(), 1, k, other)
                 : reordered(order, dense.data(), other, k, 1);
}

template <int kOrder>
void gemm(const GemmArgs<float>& args) {
  const std::vector<float> a =
      reordered_factor(kOrder, args.a, args.k, args.m, args.lda, args.transpose_a);
  const std::vector<float> b =
      reordered_factor(kOrder, args.b, args.k, args.n, args.ldb, !args.transpose_b);
  GemmArgs<float> other = args;
  other.a = a.data();
  other.lda = args.transpose_a ? args.m : args.k;
  other.b = b.data();
  other.ldb = args.transpose_b ? args.k : args.n;
  active().gemm(other);
}

template <int kOrder>
void conv2d_forward(const ConvArgs<float>& args) {
  const ConvShape& s = args.shape;
  const std::vector<float> x =
      reordered(kOrder, args.x, s.batch, s.in_channels, s.in_height * s.in_width);
  const std::vector<float> w =
      reordered(kOrder, args.w, s.out_channels, s.in_channels, s.kernel_height * s.kernel_width);
  ConvArgs<float> other = args;
  other.x = x.data();
  other.w = w.data();
  active().conv2d_forward(other);
}

template <int kOrder>
void conv2d_backward_input(const ConvArgs<float>& args) {
  const ConvShape& s = args.shape;
  const std::vector<float> dy =
      reordered(kOrder, args.dy, s.batch, s.out_channels, s.out_height * s.out_width);
  const std::vector<float> w = reordered(kOrder, args.w, 1, s.out_channels,
                                         s.in_channels * s.kernel_height * s.kernel_width);
  ConvArgs<float> other = args;
  other.dy = dy.data();
  other.w = w.data();
  active().conv2d_backward_input(other);
}

template <int kOrder>
void conv2d_backward_weight(const ConvArgs<float>& args) {
  const ConvShape& s = args.shape;
  const std::vector<float> x =
      reordered(kOrder, args.x, 1, s.batch, s.in_channels * s.in_height * s.in_width);
  const std::vector<float> dy =
      reordered(kOrder, args.dy, 1, s.batch, s.out_channels * s.out_height * s.out_width);
  ConvArgs<float> other = args;
  other.x = x.data();
  other.dy = dy.data();
  active().conv2d_backward_weight(other);
}

template <int kOrder>
void channel_sum(const float* x, float* y, int64_t outer, int64_t channels, int64_t inner,
                 const Accumulator& accumulator) {
  const std::vector<float> other = outer > 1 ? reordered(kOrder, x, 1, outer, channels * inner)
                                             : reordered(kOrder, x, channels, inner, 1);
  active().channel_sum(other.data(), y, outer, channels, inner, accumulator);
}

template <int kOrder>
void row_sums(const float* x, float* y, int64_t rows, int64_t cols,
              const Accumulator& accumulator) {
  active().row_sums(reordered(kOrder, x, rows, cols, 1).data(), y, rows, cols, accumulator);
}

// A batch (N,C,S) seen as (outer, count, inner): its statistics are sums over `count`, the images,
// or the places of a single one.
struct BatchTerms {
  int64_t outer, count, inner;
  template <typename Args>
  explicit BatchTerms(const Args& args)
      : outer(args.batch > 1 ? 1 : args.channels),
        count(args.batch > 1 ? args.batch : args.spatial),
        inner(args.batch > 1 ? args.channels * args.spatial : 1) {}
  std::vector<float> reordered(int order, const float* x) const {
    return lockstep::reordered(order, x, outer, count, inner);
  }
  // Back to the given order.
  void restore(int order, const std::vector<float>& from, float* to) const {
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < count; ++i) {
        std::copy_n(from.data() + (o * count + i) * inner, inner,
                    to + (o * count + place(order, i, count)) * inner);
      }
    }
  }
};

template <int kOrder>
void batch_norm(const BatchNormArgs<float>& args) {
  const BatchTerms terms(args);
  const std::vector<float> x = terms.reordered(kOrder, args.x);
  std::vector<float> y(x.size());
  BatchNormArgs<float> other = args;
  other.x = x.data();
  other.y = y.data();
  active().batch_norm(other);
  terms.restore(kOrder, y, args.y);
}

template <int kOrder>
void batch_norm_backward(const BatchNormBackwardArgs<float>& args) {
  const BatchTerms terms(args);
  const std::vector<float> x = terms.reordered(kOrder, args.x);
  const std::vector<float> dy = terms.reordered(kOrder, args.dy);
  std::vector<float> dx(x.size());
  BatchNormBackwardArgs<float> other = args;
  other.x = x.data();
  other.dy = dy.data();
  if (args.dx != nullptr) other.dx = dx.data();
  active().batch_norm_backward(other);
  if (args.dx != nullptr) terms.restore(kOrder, dx, args.dx);
}

template <int kOrder>
const KernelSet& kernels_in_order() {
  static std::mutex mutex;
  static std::map<std::string, KernelSet, std::less<>> sets;  // by the name of the active set
  const std::scoped_lock lock(mutex);
  const auto [entry, is_new] =
      sets.try_emplace(std::string(active_kernels().name), active_kernels());
  if (is_new) {
    Kernels<float>& f32 = entry->second.f32;
    f32.gemm = gemm<kOrder>;
    f32.rounded_gemm = nullptr;
    f32.conv2d_forward = conv2d_forward<kOrder>;
    f32.conv2d_backward_input = conv2d_backward_input<kOrder>;
    f32.conv2d_backward_weight = conv2d_backward_weight<kOrder>;
    f32.channel_sum = channel_sum<kOrder>;
    f32.row_sums = row_sums<kOrder>;
    f32.batch_norm = batch_norm<kOrder>;
    f32.batch_norm_backward = batch_norm_backward<kOrder>;
  }
  return entry->second;
}

template <int... kOrders>
std::array<const KernelSet& (*)(), kOtherOrders> getters(std::integer_sequence<int, kOrders...>) {
  return {kernels_in_order<kOrders>...};
}

}  // namespace

std::array<const KernelSet& (*)(), kOtherOrders> kernels_in_other_orders() {
  return getters(std::make_integer_sequence<int, kOtherOrders>());
}

}  // namespace lockstep
