// Reductions of rows: the bits of every kernel set and number of threads, and values by hand.
#include <doctest/doctest.h>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/elements/rows.h"
#include "emulation/kernels/scalar/elements/select.h"
#include "emulation/kernels/scalar/elements/softmax.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/math/functions.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

// Everything that sums or exponentiates in rows, one after the other.
template <typename T>
std::vector<T> all_rows(const Kernels<T>& kernels, const std::vector<T>& x,
                        const std::vector<T>& dy, int64_t rows, int64_t cols,
                        const Accumulator& accumulator) {
  const size_t n = x.size(), r = static_cast<size_t>(rows);
  std::vector<T> out(9 * n + 5 * r);
  T* at = out.data();
  const auto next = [&](size_t count) { return (at += count) - count; };
  T* y = next(n);
  kernels.softmax(x.data(), y, rows, cols, accumulator);
  kernels.softmax_backward(y, dy.data(), next(n), rows, cols, accumulator);
  y = next(n);
  kernels.log_softmax(x.data(), y, rows, cols, accumulator, nullptr);
  kernels.log_softmax_backward(y, dy.data(), next(n), rows, cols, accumulator);
  y = next(r);
  kernels.logsumexp(x.data(), y, rows, cols, accumulator, nullptr);
  kernels.logsumexp_backward(x.data(), y, dy.data(), next(n), rows, cols, nullptr);
  const Format& parts = find_format("bf16");
  kernels.log_softmax(x.data(), next(n), rows, cols, accumulator, &parts);
  y = next(r);
  kernels.logsumexp(x.data(), y, rows, cols, accumulator, &parts);
  kernels.logsumexp_backward(x.data(), y, dy.data(), next(n), rows, cols, &parts);
  kernels.row_sums(x.data(), next(r), rows, cols, accumulator);
  T *var = next(r), *mean = next(r);
  kernels.row_variances(x.data(), 1, var, mean, rows, cols, accumulator);
  kernels.row_variances_backward(x.data(), mean, var, mean, 1, next(n), rows, cols);
  kernels.running_sums(x.data(), false, next(n), rows, cols, accumulator);
  return out;
}

template <typename T>
void check_conformance(int64_t rows, int64_t cols, DataKind kind) {
  const auto count = static_cast<size_t>(rows * cols);
  const std::vector<T> x = make_data<T>(count, kind, find_format("fp32"), 1);
  const std::vector<T> dy = make_data<T>(count, DataKind::kSmall, find_format("fp32"), 2);
  for (const char* name : {"fp32_fused", "fp16", "bf16", "fp64_fused"}) {
    const Accumulator& accumulator = find_accumulator(name);
    const auto want = all_rows(scalar_kernels().of<T>(), x, dy, rows, cols, accumulator);
    for (const KernelSet* set : available_kernel_sets()) {
      for (const int threads : {1, 3}) {
        const ThreadCountGuard guard(threads);
        CAPTURE(set->name);
        CAPTURE(name);
        CAPTURE(cols);
        CHECK(same_bits(all_rows(set->of<T>(), x, dy, rows, cols, accumulator), want));
      }
    }
  }
}

const Accumulator& fp32() {
  return find_accumulator("fp32_fused");
}

}  // namespace

TEST_CASE("log_softmax in BF16 parts: the sum and its logarithm are rounded") {
  const RowFunctions<float>& row = scalar_kernels().f32.row;
  const auto least = [&](size_t count, const Format* parts) {
    const std::vector<float> x(count, 0.0F);
    std::vector<float> y(count);
    log_softmax_with(row, x.data(), y.data(), 1, static_cast<int64_t>(count), fp32(), parts);
    return y[0];
  };
  const Format* bf16 = &find_format("bf16");
  CHECK(least(3, nullptr) == doctest::Approx(-1.0986123));
  CHECK(least(3, bf16) == -1.1015625F);  // ln 3 = 140.6 / 128
  CHECK(least(257, bf16) == -5.53125F);  // 257 is 256, and ln 256 = 177.4 / 32; ln 257 = 177.6
}

TEST_CASE("logsumexp in BF16 parts: every operation is rounded, forward and backward") {
  const RowFunctions<float>& row = scalar_kernels().f32.row;
  const Format* bf16 = &find_format("bf16");
  const float x[2] = {0, -257.0F / 256};
  float y = 0, dx[2];
  // -1 (a tie), exp -1 = 188.4 / 512, the sum is 700 / 512, its logarithm 160.1 / 512
  logsumexp_with(row, x, &y, 1, 2, fp32(), bf16);
  CHECK(y == 160.0F / 512);
  // exp -0.3125 = 187.3 / 256; -1.3164 is -168 / 128 (a tie), and its exp 137.8 / 512
  const float dy = 1;
  logsumexp_backward_with(row, x, &y, &dy, dx, 1, 2, bf16);
  CHECK(dx[0] == 187.0F / 256);
  CHECK(dx[1] == 138.0F / 512);
}

TEST_CASE("rows: every kernel set gives the scalar bits, on any number of threads") {
  for (const int64_t cols : {1, 31, 32, 33, 1000}) {
    check_conformance<float>(7, cols, DataKind::kSmall);
    check_conformance<double>(7, cols, DataKind::kSmall);
  }
  check_conformance<float>(40, 4100, DataKind::kWide);  // two blocks, several ranges of rows
  check_conformance<float>(40, 33, DataKind::kSpecial);
  check_conformance<double>(40, 33, DataKind::kSpecial);
}

TEST_CASE("rows: a row sum equals channel_sum's") {
  const std::vector<float> x = make_data<float>(3 * 9001, DataKind::kWide, find_format("fp32"), 3);
  std::vector<float> rows(3), channels(3);
  active_kernels().f32.row_sums(x.data(), rows.data(), 3, 9001, fp32());
  active_kernels().f32.channel_sum(x.data(), channels.data(), 1, 3, 9001, fp32());
  CHECK(same_bits(rows, channels));
}

TEST_CASE("rows: maxima by hand: ties share, the first index counts, NaN wins") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {1, 3, 3, 0, -1, kNan, 5, kNan}, dy = {6, 1};
  std::vector<float> y(2), dx(8);
  std::vector<int32_t> index(2);
  row_maxima(x.data(), y.data(), index.data(), 2, 4);
  CHECK(y[0] == 3);
  CHECK(std::isnan(y[1]));
  CHECK(index == std::vector<int32_t>{1, 1});
  row_maxima_backward(x.data(), y.data(), dy.data(), dx.data(), 1, 4);
  CHECK(std::vector<float>(dx.begin(), dx.begin() + 4) == std::vector<float>{0, 3, 3, 0});
  row_index_backward(index.data(), dy.data(), dx.data(), 2, 4);
  CHECK(dx == std::vector<float>{0, 6, 0, 0, 0, 1, 0, 0});
}

TEST_CASE("rows: running sums round every step to the accumulator's format") {
  // 2048 + 1 is a tie in FP16 (spacing 2 from 2048 on): the sum stays, 2048 + 2 does not.
  const std::vector<float> x = {2048, 1, 1, 2};
  std::vector<float> y(4);
  running_sums(x.data(), false, y.data(), 1, 4, find_accumulator("fp16"));
  CHECK(y == std::vector<float>{2048, 2048, 2048, 2050});
  running_sums(x.data(), true, y.data(), 1, 4, find_accumulator("fp16"));
  CHECK(y == std::vector<float>{2052, 4, 3, 2});
  running_sums(x.data(), false, y.data(), 1, 4, fp32());
  CHECK(y == std::vector<float>{2048, 2049, 2050, 2052});
}

TEST_CASE("rows: variance by hand, and none without a degree of freedom") {
  const std::vector<double> x = {1, 2, 4, 5};
  const auto& row = active_kernels().f64.row;
  const Accumulator& fp64 = find_accumulator("fp64_fused");
  double var, mean;
  row_variances(row, x.data(), 0, &var, &mean, 1, 4, fp64);
  CHECK(mean == 3);
  CHECK(var == 2.5);  // (4 + 1 + 1 + 4) / 4
  row_variances(row, x.data(), 2, &var, &mean, 1, 4, fp64);
  CHECK(var == 5);
  row_variances(row, x.data(), 4, &var, &mean, 1, 4, fp64);
  CHECK(std::isinf(var));
}

}  // namespace lockstep
