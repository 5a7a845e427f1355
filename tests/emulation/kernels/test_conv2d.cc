// Convolutions by gathered columns against the direct loops, bit for bit; the gradients against
// finite differences; the padding rule by hand.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/kernels.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

ConvShape make_shape(int64_t batch, int64_t in, int64_t height, int64_t width, int64_t out,
                     int64_t kernel_h, int64_t kernel_w, int64_t stride, int64_t pad,
                     int64_t dilation) {
  ConvShape s{batch, in, height, width, out, kernel_h, kernel_w, 0, 0};
  s.stride_h = s.stride_w = stride;
  s.pad_h = s.pad_w = pad;
  s.dilation_h = s.dilation_w = dilation;
  s.out_height = (height + 2 * pad - dilation * (kernel_h - 1) - 1) / stride + 1;
  s.out_width = (width + 2 * pad - dilation * (kernel_w - 1) - 1) / stride + 1;
  return s;
}

// A 1-d convolution: images of one row.
ConvShape make_row(int64_t batch, int64_t in, int64_t width, int64_t out, int64_t kernel,
                   int64_t stride, int64_t pad, int64_t dilation) {
  ConvShape s{batch, in, 1, width, out, 1, kernel, 1, 0};
  s.stride_w = stride, s.pad_w = pad, s.dilation_w = dilation;
  s.out_width = (width + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
  return s;
}

std::vector<ConvShape> shapes() {
  std::vector<ConvShape> list = {
      make_shape(2, 1, 28, 28, 6, 5, 5, 1, 0, 1),  make_shape(1, 3, 9, 7, 4, 3, 3, 2, 1, 1),
      make_shape(2, 2, 8, 8, 3, 3, 2, 1, 2, 2),    make_shape(3, 5, 6, 6, 2, 1, 1, 1, 0, 1),
      make_shape(1, 2, 11, 5, 17, 3, 5, 3, 2, 1),  make_shape(1, 4, 6, 40, 33, 2, 3, 2, 3, 2),
      make_shape(2, 1, 4, 4, 1, 4, 4, 1, 0, 1),    make_shape(1, 40, 71, 70, 2, 3, 3, 1, 1, 1),
      make_shape(2, 3, 16, 16, 20, 1, 1, 2, 0, 1), make_shape(2, 4, 18, 35, 34, 3, 3, 2, 1, 1),
      make_shape(1, 2, 23, 19, 3, 4, 3, 4, 1, 3),  make_shape(1, 2, 1, 1, 3, 3, 3, 2, 1, 1),
      make_shape(1, 2, 1, 5, 3, 3, 3, 2, 1, 1),    make_shape(1, 2, 5, 1, 3, 3, 3, 2, 1, 1)};
  // Three taps about the pixel itself: rows shorter and longer than vectors, and of one pixel.
  for (const int64_t width : {1, 2, 7, 8, 16, 35}) {
    list.push_back(make_shape(2, 2, 5, width, 16, 3, 3, 1, 1, 1));
  }
  list.push_back(make_shape(2, 3, 1, 9, 3, 1, 3, 1, 1, 1));
  list.push_back(make_row(2, 1, 200, 5, 40, 16, 0, 1));  // a front end's windows
  list.push_back(make_row(1, 1, 70, 3, 9, 12, 4, 2));    // strides longer than the kernel
  list.push_back(make_row(2, 1, 300, 6, 9, 1, 4, 1));
  list.push_back(make_row(1, 3, 41, 2, 5, 3, 2, 3));
  list.push_back(make_shape(1, 1, 24, 26, 4, 10, 10, 10, 0, 1));  // patches
  for (const int64_t width : {8, 16, 32})
    list.push_back(make_shape(1, 1, 5, width, 3, 5, 5, 1, 2, 1));
  // Backward, three of these taps read a pixel of one column, two or four one of the next.
  list.push_back(make_shape(1, 2, 16, 16, 3, 5, 5, 2, 2, 1));
  list.push_back(make_shape(1, 1, 14, 18, 2, 7, 7, 2, 3, 1));
  ConvShape every_second_row = make_shape(1, 2, 9, 10, 15, 3, 3, 1, 1, 1);
  every_second_row.stride_h = 2, every_second_row.out_height = 5;
  list.push_back(every_second_row);
  ConvShape uneven = make_shape(2, 2, 9, 12, 3, 3, 2, 1, 0, 1);
  uneven.stride_h = 2, uneven.pad_w = 1, uneven.dilation_w = 3;
  uneven.out_height = (9 - 2 - 1) / 2 + 1;
  uneven.out_width = (12 + 2 - 3 - 1) / 1 + 1;
  list.push_back(uneven);
  // More padding at the end than at the start: the last windows extend further than the padding at
  // the start suggests.
  ConvShape behind = make_shape(2, 3, 10, 13, 18, 4, 4, 1, 1, 1);
  behind.out_height += 1, behind.out_width += 2;
  list.push_back(behind);
  for (const int64_t pad : {0, 1}) {  // three taps, as many outputs as pixels or one more
    ConvShape wider = make_shape(1, 2, 6, 9, 3, 3, 3, 1, pad, 1);
    wider.out_height = 6, wider.out_width = 9 + pad;
    list.push_back(wider);
  }
  behind.stride_h = behind.stride_w = 2;
  behind.out_height = (10 + 1 + 3 - 4) / 2 + 1, behind.out_width = (13 + 1 + 4 - 4) / 2 + 1;
  list.push_back(behind);
  return list;
}

size_t x_size(const ConvShape& s) {
  return static_cast<size_t>(s.batch * s.in_channels * s.in_height * s.in_width);
}
size_t w_size(const ConvShape& s) {
  return static_cast<size_t>(s.out_channels * s.in_channels * s.kernel_height * s.kernel_width);
}
size_t y_size(const ConvShape& s) {
  return static_cast<size_t>(s.batch * s.out_channels * s.out_height * s.out_width);
}

// y, dx, dw and their events, one after the other.
template <typename T>
struct Results {
  std::vector<T> y, dx, dw;
  std::vector<uint8_t> y_events, dx_events, dw_events;
};

template <typename T>
Results<T> convolve(const KernelSet& set, const ConvShape& s, const Accumulator& accumulator,
                    const std::vector<T>& x, const std::vector<T>& w, const std::vector<T>& dy,
                    bool with_events) {
  Results<T> r;
  r.y.resize(y_size(s)), r.dx.resize(x_size(s)), r.dw.resize(w_size(s));
  if (with_events) {
    r.y_events.resize(y_size(s)), r.dx_events.resize(x_size(s)), r.dw_events.resize(w_size(s));
  }
  const auto args = [&](std::vector<T>& out, std::vector<uint8_t>& events) {
    return ConvArgs<T>{.shape = s,
                       .x = x.data(),
                       .w = w.data(),
                       .dy = dy.data(),
                       .out = out.data(),
                       .accumulator = &accumulator,
                       .events = with_events ? events.data() : nullptr};
  };
  set.of<T>().conv2d_forward(args(r.y, r.y_events));
  set.of<T>().conv2d_backward_input(args(r.dx, r.dx_events));
  set.of<T>().conv2d_backward_weight(args(r.dw, r.dw_events));
  return r;
}

int64_t products(const ConvShape& s) {
  return static_cast<int64_t>(y_size(s)) * s.in_channels * s.kernel_height * s.kernel_width;
}
bool is_large(const ConvShape& s) {
  return products(s) > 60'000;
}

enum class Shapes : uint8_t { kAll, kSmall, kLarge };

template <typename T>
void compare_sets(const Accumulator& accumulator, const Format& format, DataKind kind,
                  bool with_events, Shapes which) {
  for (const ConvShape& s : shapes()) {
    if (which != Shapes::kAll && is_large(s) != (which == Shapes::kLarge)) continue;
    const auto x = make_data<T>(x_size(s), kind, format, 1);
    const auto w = make_data<T>(w_size(s), kind, format, 2);
    const auto dy = make_data<T>(y_size(s), kind, format, 3);
    const auto want = convolve(scalar_kernels(), s, accumulator, x, w, dy, with_events);
    for (const KernelSet* set : available_kernel_sets()) {
      if (set == &scalar_kernels()) continue;
      for (const int threads : {1, 2}) {
        const ThreadCountGuard guard(threads);
        const auto got = convolve(*set, s, accumulator, x, w, dy, with_events);
        CAPTURE(set->name);
        CAPTURE(accumulator.name);
        CAPTURE(s.stride_h);
        CAPTURE(s.pad_h);
        CAPTURE(s.dilation_h);
        CAPTURE(s.in_height);
        CAPTURE(s.in_width);
        CAPTURE(s.kernel_width);
        REQUIRE(same_bits(got.y, want.y));
        REQUIRE(same_bits(got.dx, want.dx));
        REQUIRE(same_bits(got.dw, want.dw));
        REQUIRE(same_bits(got.y_events, want.y_events));
        REQUIRE(same_bits(got.dx_events, want.dx_events));
        REQUIRE(same_bits(got.dw_events, want.dw_events));
      }
    }
  }
}

// `choose`: the shapes for a row of the table of accumulators; `special`: those with NaN and
// infinity.
template <typename Choose>
void compare_accumulators(Choose choose, Shapes special) {
  size_t row = 0;
  for (const Accumulator& accumulator : accumulators()) {
    if (accumulator.operands.size() > 1) continue;  // need formats, which lowering chooses
    const Shapes which = choose(accumulator, row++);
    const bool narrow = accumulator.format->precision < 24;
    const Format& inputs = !accumulator.operands.empty() ? *accumulator.operands[0]
                           : narrow                      ? *accumulator.format
                                                         : find_format("fp32");
    const bool has_events =
        accumulator.adds() || accumulator.kind == AccumulatorKind::kAlignedBlocks;
    compare_sets<float>(accumulator, inputs, DataKind::kWide, narrow && has_events, which);
    compare_sets<float>(accumulator, inputs, DataKind::kSpecial, has_events, special);
  }
}

template <typename T>
void compare_fused(const ConvShape& s, const std::vector<T>& x, const std::vector<T>& dy) {
  const Accumulator& accumulator = find_accumulator(sizeof(T) == 4 ? "fp32_fused" : "fp64_fused");
  const Format& format = *accumulator.format;
  const auto w = make_data<T>(w_size(s), DataKind::kSmall, format, 2);
  const auto want = convolve(scalar_kernels(), s, accumulator, x, w, dy, false);
  for (const KernelSet* set : available_kernel_sets()) {
    const auto got = convolve(*set, s, accumulator, x, w, dy, false);
    CAPTURE(set->name);
    CAPTURE(s.in_width);
    CHECK(same_bits(got.y, want.y));
    CHECK(same_bits(got.dx, want.dx));
  }
}

}  // namespace

// The scalar loops are slow, above all those of aligned blocks, of which every eighth row runs the
// large shapes here. The slow suite runs them for every row, and with special values.
TEST_CASE("conv2d: every kernel set gives the scalar bits") {
  constexpr size_t kEvery = 8;
  const auto choose = [](const Accumulator& accumulator, size_t row) {
    const bool slow = accumulator.kind == AccumulatorKind::kAlignedBlocks;
    return slow && row % kEvery != 0 ? Shapes::kSmall : Shapes::kAll;
  };
  compare_accumulators(choose, Shapes::kSmall);
  compare_sets<double>(find_accumulator("fp64_fused"), find_format("fp64"), DataKind::kSmall, false,
                       Shapes::kAll);
}

TEST_SUITE("slow") {
  TEST_CASE("conv2d: every kernel set gives the scalar bits, large shapes of every accumulator") {
    compare_accumulators([](const Accumulator&, size_t) { return Shapes::kLarge; }, Shapes::kLarge);
  }
}

TEST_CASE_TEMPLATE("conv2d: NaN and infinity at a row's ends stay in their row", T, float, double) {
  for (const int64_t width : {1, 2, 7, 8, 16, 17, 35}) {
    const ConvShape s = make_shape(1, 2, 6, width, 2, 3, 3, 1, 1, 1);
    std::vector<T> x(x_size(s), T(1)), dy(y_size(s), T(1));
    const auto row = static_cast<size_t>(width);
    for (std::vector<T>* data : {&x, &dy}) {
      (*data)[2 * row] = std::numeric_limits<T>::quiet_NaN();
      (*data)[5 * row - 1] = std::numeric_limits<T>::infinity();
    }
    compare_fused(s, x, dy);
  }
}

TEST_CASE("conv2d: dx of large images, whose columns are read through two and three taps") {
  const ConvShape s = make_shape(1, 1, 140, 96, 40, 5, 5, 2, 2, 1);
  const Format& fp32 = find_format("fp32");
  compare_fused(s, make_data<float>(x_size(s), DataKind::kWide, fp32, 1),
                make_data<float>(y_size(s), DataKind::kWide, fp32, 3));
}

TEST_CASE("conv2d: zeros between the pixels of dy turn -0 into +0") {
  // Pixel (1, 1) is read through tap (1, 1) only: -2^-200 rounded to -0. Then come the other taps
  // times zero: with positive weights they turn it into +0, with negative weights it remains.
  for (const float others : {1.0f, -1.0f}) {
    for (const int64_t out_channels : {1, 2}) {
      for (const bool is_row : {false, true}) {
        const ConvShape s = is_row ? make_row(1, 1, 35, out_channels, 3, 2, 0, 1)
                                   : make_shape(1, 1, 17, 17, out_channels, 3, 3, 2, 0, 1);
        std::vector<float> w(w_size(s), others), dy(y_size(s), 0x1p-100f);
        w[is_row ? 1 : 4] = -0x1p-100f;
        for (size_t i = y_size(s) / static_cast<size_t>(out_channels); i < dy.size(); ++i)
          dy[i] = 0;
        const Accumulator& accumulator = find_accumulator("fp32_fused");
        const std::vector<float> x(x_size(s));
        const auto want = convolve(scalar_kernels(), s, accumulator, x, w, dy, false);
        CHECK(std::signbit(want.dx[is_row ? 1 : 17 + 1]) == (others < 0));
        for (const KernelSet* set : available_kernel_sets()) {
          CHECK(same_bits(convolve(*set, s, accumulator, x, w, dy, false).dx, want.dx));
        }
      }
    }
  }
}

TEST_CASE("conv2d: gradients are the derivative of sum(y * dy)") {
  // The sum is linear in x and in w, so a difference quotient with step h has no truncation error;
  // its rounding error is below n * u * |terms| / h.
  const Accumulator& fp64 = find_accumulator("fp64_fused");
  const Format& format = find_format("fp64");
  for (const ConvShape& s : shapes()) {
    auto x = make_data<double>(x_size(s), DataKind::kSmall, format, 1);
    auto w = make_data<double>(w_size(s), DataKind::kSmall, format, 2);
    const auto dy = make_data<double>(y_size(s), DataKind::kSmall, format, 3);
    const auto base = convolve(scalar_kernels(), s, fp64, x, w, dy, false);
    const auto objective = [&] {
      std::vector<double> y(y_size(s));
      active_kernels().f64.conv2d_forward(
          {.shape = s, .x = x.data(), .w = w.data(), .out = y.data(), .accumulator = &fp64});
      double sum = 0;
      for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
      return sum;
    };
    const double terms = static_cast<double>(y_size(s)) * static_cast<double>(w_size(s));
    const double tolerance = 4 * terms * 0x1p-53;
    const double before = objective();
    for (std::vector<double>* values : {&x, &w}) {
      const auto& gradient = values == &x ? base.dx : base.dw;
      for (size_t i = 0; i < values->size(); i += 1 + values->size() / 7) {
        const double old = (*values)[i];
        (*values)[i] = old + 1;
        CHECK(std::fabs(objective() - before - gradient[i]) <= tolerance);
        (*values)[i] = old;
      }
    }
  }
}

TEST_CASE("conv2d: padding counts as 0") {
  const ConvShape s = make_shape(1, 1, 1, 1, 1, 3, 3, 1, 1, 1);  // only the middle tap is inside
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> w(9, 1), x = {2}, y(1);
  for (const KernelSet* set : available_kernel_sets()) {
    const auto run = [&] {
      set->f32.conv2d_forward({.shape = s,
                               .x = x.data(),
                               .w = w.data(),
                               .out = y.data(),
                               .accumulator = &find_accumulator("fp32_fused")});
      return y[0];
    };
    w[0] = 1;
    CHECK(run() == 2);
    w[0] = infinity;
    CHECK(std::isnan(run()));
  }
}

}  // namespace lockstep
