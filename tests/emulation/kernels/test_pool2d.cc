// Max pooling: ties, NaN, padding and overlapping windows by hand, and its gradient.
#include <doctest/doctest.h>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/kernels.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Pooled {
  std::vector<float> y;
  std::vector<int32_t> argmax;
};
Pooled pool(const PoolShape& s, const std::vector<float>& x) {
  const auto count = static_cast<size_t>(s.batch * s.channels * s.out_height * s.out_width);
  Pooled out{std::vector<float>(count), std::vector<int32_t>(count)};
  active_kernels().f32.max_pool2d(s, x.data(), out.y.data(), out.argmax.data());
  return out;
}

// One 1 x 4 image, windows of 2 with stride 2.
constexpr PoolShape kPairs = {1, 1, 1, 4, 1, 2, 1, 2, 1, 2};

}  // namespace

TEST_CASE("max_pool2d: ties go to the first element, NaN wins") {
  const Pooled ties = pool(kPairs, {3, 3, -0.0f, 0});
  CHECK(ties.argmax == std::vector<int32_t>{0, 2});
  const Pooled nan = pool(kPairs, {kNan, 5, 5, kNan});
  CHECK(nan.argmax == std::vector<int32_t>{0, 3});
  CHECK(std::isnan(nan.y[0]));
  CHECK(std::isnan(nan.y[1]));
  const PoolShape whole = {1, 1, 1, 4, 1, 1, 1, 4, 1, 1};
  CHECK(pool(whole, {1, kNan, 7, kNan}).argmax[0] == 1);
  CHECK(pool(whole, {-kInfinity, -kInfinity, -kInfinity, -kInfinity}).argmax[0] == 0);
}

TEST_CASE("max_pool2d: padding never wins") {
  const PoolShape padded = {1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1};
  const Pooled out = pool(padded, {-1, -2, -3, -4});
  CHECK(out.y == std::vector<float>{-1, -2, -3, -4});
  CHECK(out.argmax == std::vector<int32_t>{0, 1, 2, 3});
}

TEST_CASE("max_pool2d: the gradient goes to the maximum, and adds up where windows overlap") {
  const PoolShape overlapping = {1, 2, 1, 4, 1, 3, 1, 2, 1, 1};
  const std::vector<float> x = {1, 9, 2, 3, 4, 3, 2, 1};
  const Pooled out = pool(overlapping, x);
  CHECK(out.argmax == std::vector<int32_t>{1, 1, 3, 0, 1, 2});
  std::vector<float> dx(8, 77);
  const std::vector<float> dy = {1, 2, 4, 8, 16, 32};
  active_kernels().f32.max_pool2d_backward(overlapping, dy.data(), out.argmax.data(), dx.data());
  CHECK(dx == std::vector<float>{0, 3, 0, 4, 8, 16, 32, 0});
}

TEST_CASE("kernel sets: max_pool2d has the scalar bits, edges, ties and NaN included") {
  // in_h, in_w, kernel, stride, pad, dilation; floor or ceil mode gives out_h and out_w
  const int64_t cases[][6] = {{9, 70, 2, 2, 0, 1}, {9, 70, 3, 2, 1, 1},  {8, 33, 3, 1, 1, 1},
                              {7, 40, 2, 3, 1, 1}, {12, 64, 3, 1, 2, 2}, {12, 65, 3, 2, 2, 3},
                              {1, 5, 1, 1, 0, 1}};
  for (const auto& [height, width, kernel, stride, pad, dilation] : cases) {
    for (const int64_t extra : {int64_t{0}, stride - 1}) {  // ceil mode
      const int64_t reach = dilation * (kernel - 1) + 1;
      const auto extent = [&](int64_t in) { return (in + 2 * pad - reach + extra) / stride + 1; };
      PoolShape s{2,      3,      height, width, extent(height), extent(width), kernel, kernel,
                  stride, stride, pad,    pad,   dilation,       dilation};
      if ((s.out_height - 1) * stride >= height + pad) --s.out_height;
      if ((s.out_width - 1) * stride >= width + pad) --s.out_width;
      const auto count = static_cast<size_t>(6 * height * width);
      std::vector<float> x = make_data<float>(count, DataKind::kSpecial, find_format("fp32"), 5);
      for (size_t i = 0; i < count; i += 3) x[i] = static_cast<float>(i % 5);  // ties
      const auto outputs = static_cast<size_t>(6 * s.out_height * s.out_width);
      std::vector<float> y(outputs), want_y(outputs);
      std::vector<int32_t> argmax(outputs), want_argmax(outputs);
      scalar_kernels().f32.max_pool2d(s, x.data(), want_y.data(), want_argmax.data());
      for (const KernelSet* set : available_kernel_sets()) {
        CAPTURE(set->name);
        CAPTURE(width);
        set->f32.max_pool2d(s, x.data(), y.data(), argmax.data());
        CHECK(same_bits(y, want_y));
        CHECK(argmax == want_argmax);
      }
    }
  }
}

TEST_CASE("max_pool2d: dilated windows skip elements and the padding between their taps") {
  // Taps 2 apart on 1 x 5 elements padded by one: (-1, 1), (0, 2), (1, 3), (2, 4), (3, 5).
  const PoolShape dilated = {1, 1, 1, 5, 1, 5, 1, 2, 1, 1, 0, 1, 1, 2};
  const Pooled out = pool(dilated, {5, 1, 9, 2, 7});
  CHECK(out.y == std::vector<float>{1, 9, 2, 9, 2});
  CHECK(out.argmax == std::vector<int32_t>{1, 2, 3, 2, 3});
}

}  // namespace lockstep
