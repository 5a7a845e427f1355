// Row normalisation: by hand, against its formula in long double, and kernel sets and thread counts
// against the scalar bits.
#include <doctest/doctest.h>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/kernels.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

// Everything row_norm and its gradient produce, for one kernel set.
template <typename T>
struct RowNorm {
  int64_t rows, cols, groups = 1, spatial = 1;
  bool centred = true;
  const Accumulator* accumulator;
  std::vector<T> x, dy, w, b;
  std::vector<T> y, mean, inv_std, dx, dw, db;

  RowNorm(int64_t r, int64_t c, int64_t g, int64_t s, const Accumulator& a,
          DataKind kind = DataKind::kSmall)
      : rows(r), cols(c), groups(g), spatial(s), accumulator(&a) {
    const Format& format = find_format(sizeof(T) == 4 ? "fp32" : "fp64");
    const auto all = static_cast<size_t>(r * c), weights = static_cast<size_t>(g * c / s);
    x = make_data<T>(all, kind, format, 1), dy = make_data<T>(all, kind, format, 2);
    w = make_data<T>(weights, kind, format, 3), b = make_data<T>(weights, kind, format, 4);
    for (auto* v : {&y, &dx}) v->resize(all);
    for (auto* v : {&mean, &inv_std}) v->resize(static_cast<size_t>(r));
    for (auto* v : {&dw, &db}) v->resize(weights);
  }
  void run(const Kernels<T>& kernels) {
    kernels.row_norm({rows, cols, groups, spatial, 1e-5, centred, x.data(), w.data(), b.data(),
                      y.data(), mean.data(), inv_std.data(), accumulator});
    kernels.row_norm_backward({rows, cols, groups, spatial, centred, x.data(), dy.data(), w.data(),
                               mean.data(), inv_std.data(), dx.data(), dw.data(), db.data(),
                               accumulator});
  }
  bool same_bits_as(const RowNorm& other) const {
    return same_bits(y, other.y) && same_bits(mean, other.mean) &&
           same_bits(inv_std, other.inv_std) && same_bits(dx, other.dx) &&
           same_bits(dw, other.dw) && same_bits(db, other.db);
  }
};

const Accumulator& fp64() {
  return find_accumulator("fp64_fused");
}

}  // namespace

TEST_CASE("row_norm: two values by hand, with and without the mean") {
  RowNorm<double> n(1, 2, 1, 1, fp64());
  n.x = {1, 3}, n.w = {2, 1}, n.b = {10, 0}, n.dy = {1, 0};
  n.run(active_kernels().f64);  // mean 2, biased variance 1
  const double inv_std = 1 / std::sqrt(1 + 1e-5);
  CHECK(n.mean[0] == 2);
  CHECK(n.inv_std[0] == inv_std);
  CHECK(n.y == std::vector<double>{-inv_std * 2 + 10, inv_std});
  CHECK(n.dw == std::vector<double>{-inv_std, 0});
  CHECK(n.db == std::vector<double>{1, 0});
  // g = (2, 0), sum g = 2, sum g xhat = -2 inv_std
  const double factor = inv_std / 2, sum = -2 * inv_std;
  CHECK(n.dx == std::vector<double>{factor * ((4.0 - 2) + inv_std * sum),
                                    factor * ((0.0 - 2) - inv_std * sum)});
  n.centred = false, n.x = {1, 7};  // mean square 25
  n.run(active_kernels().f64);
  CHECK(n.inv_std[0] == 1 / std::sqrt(25 + 1e-5));
  CHECK(n.y[1] == 7 * n.inv_std[0]);
}

TEST_CASE("row_norm: groups and runs of elements use their own weights") {
  // Two images of two groups of two channels of three pixels; all weights differ.
  RowNorm<double> n(4, 6, 2, 3, fp64());
  n.run(active_kernels().f64);
  for (int64_t i = 0; i < 24; ++i) {
    const auto row = static_cast<size_t>(i / 6), channel = static_cast<size_t>(i / 3 % 4);
    const double x_hat = (n.x[static_cast<size_t>(i)] - n.mean[row]) * n.inv_std[row];
    CHECK(n.y[static_cast<size_t>(i)] == x_hat * n.w[channel] + n.b[channel]);
  }
  for (size_t channel = 0; channel < 4; ++channel) {
    double sum = 0;
    for (const size_t image : {0, 1}) {
      for (size_t pixel = 0; pixel < 3; ++pixel) sum += n.dy[(image * 4 + channel) * 3 + pixel];
    }
    CHECK(std::fabs(n.db[channel] - sum) <= 6 * 0x1p-53 * 6);
  }
}

TEST_CASE(
    "kernel sets: row_norm has the scalar bits, for every accumulator format and thread count") {
  struct Case {
    int64_t rows, cols, groups, spatial;
  };
  const Case cases[] = {{1, 1, 1, 1},    {33, 31, 1, 1}, {100, 256, 1, 1}, {3, 5000, 1, 1},
                        {4200, 7, 1, 1}, {12, 24, 4, 6}, {10, 33, 2, 1}};
  // One accumulator per format: the row sums depend on nothing else of it.
  for (const char* name : {"fp32_fused", "fp16", "bf16", "fp64_fused"}) {
    const Accumulator& accumulator = find_accumulator(name);
    for (const Case& c : cases) {
      for (const DataKind kind : {DataKind::kSmall, DataKind::kSpecial}) {
        CAPTURE(accumulator.name);
        CAPTURE(c.rows);
        CAPTURE(c.cols);
        RowNorm<float> want(c.rows, c.cols, c.groups, c.spatial, accumulator, kind);
        want.centred = c.cols != 24;
        want.run(scalar_kernels().f32);
        for (const KernelSet* set : available_kernel_sets()) {
          for (const int threads : {1, 3}) {
            const ThreadCountGuard guard(threads);
            CAPTURE(set->name);
            RowNorm<float> got(c.rows, c.cols, c.groups, c.spatial, accumulator, kind);
            got.centred = want.centred;
            got.run(set->f32);
            CHECK(got.same_bits_as(want));
          }
        }
      }
    }
  }
  RowNorm<double> want(4200, 33, 1, 1, fp64());
  want.run(scalar_kernels().f64);
  for (const KernelSet* set : available_kernel_sets()) {
    RowNorm<double> got(4200, 33, 1, 1, fp64());
    got.run(set->f64);
    CHECK(got.same_bits_as(want));
  }
}

}  // namespace lockstep
