// Batch normalisation, softmax, losses and elementwise kernels: gradients against difference
// quotients in double, kernel sets against each other bit for bit, rules by hand.
#include <doctest/doctest.h>

#include <functional>
#include <limits>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/kernels.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

const Accumulator& fp64() {
  return find_accumulator("fp64_fused");
}

// d objective / d values by central differences. Their truncation error is h^2 |f'''| / 6 and their
// rounding error u |f| / h; h = 2^-17 (about u^(1/3)) makes both about 2^-34 for objectives and
// derivatives near 1. kScale covers objectives and third derivatives up to 2^8.
constexpr double kStep = 0x1p-17, kScale = 0x1p8;
constexpr double kTolerance = kScale * (kStep * kStep + 0x1p-53 / kStep);

void check_gradient(std::vector<double>& values, const std::vector<double>& gradient,
                    const std::function<double()>& objective) {
  REQUIRE(values.size() == gradient.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double old = values[i];
    values[i] = old + kStep;
    const double up = objective();
    values[i] = old - kStep;
    const double down = objective();
    values[i] = old;
    CHECK(std::fabs((up - down) / (2 * kStep) - gradient[i]) <= kTolerance);
  }
}

template <typename T>
std::vector<T> data(size_t count, uint32_t index) {
  return make_data<T>(count, DataKind::kSmall, find_format(sizeof(T) == 4 ? "fp32" : "fp64"),
                      index);
}

double dot(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// Everything batch_norm and its gradient produce, for one kernel set.
template <typename T>
struct Norm {
  int64_t batch, channels, spatial;
  bool training = true;
  const Accumulator* accumulator;
  std::vector<T> x, w, b, running_mean, running_var, dy;
  std::vector<T> y, new_mean, new_var, mean, inv_std, dx, dw, db;

  Norm(int64_t n, int64_t c, int64_t s, const Accumulator& a)
      : batch(n), channels(c), spatial(s), accumulator(&a) {
    const auto all = static_cast<size_t>(n * c * s), per_channel = static_cast<size_t>(c);
    x = data<T>(all, 1), dy = data<T>(all, 2);
    w = data<T>(per_channel, 3), b = data<T>(per_channel, 4);
    running_mean = data<T>(per_channel, 5);
    running_var.assign(per_channel, T(0.75));
    y.resize(all), dx.resize(all);
    for (auto* v : {&new_mean, &new_var, &mean, &inv_std, &dw, &db}) v->resize(per_channel);
  }
  void run(const Kernels<T>& kernels) {
    kernels.batch_norm({batch, channels, spatial, 1e-5, 0.1, training, x.data(), w.data(), b.data(),
                        running_mean.data(), running_var.data(), y.data(), new_mean.data(),
                        new_var.data(), mean.data(), inv_std.data(), accumulator});
    kernels.batch_norm_backward({batch, channels, spatial, training, x.data(), dy.data(), w.data(),
                                 mean.data(), inv_std.data(), dx.data(), dw.data(), db.data(),
                                 accumulator});
  }
};

}  // namespace

TEST_CASE("batch_norm: gradients in training and in evaluation") {
  for (const bool training : {true, false}) {
    Norm<double> n(3, 2, 5, fp64());
    n.training = training;
    n.run(active_kernels().f64);
    const auto dx = n.dx, dw = n.dw, db = n.db;
    const auto objective = [&] {
      n.run(active_kernels().f64);
      return dot(n.y, n.dy);
    };
    check_gradient(n.x, dx, objective);
    check_gradient(n.w, dw, objective);
    check_gradient(n.b, db, objective);
  }
}

TEST_CASE("batch_norm: two values by hand; the running variance is unbiased") {
  Norm<double> n(1, 1, 2, fp64());
  n.x = {1, 3}, n.w = {2}, n.b = {10}, n.running_mean = {5}, n.running_var = {1};
  n.run(active_kernels().f64);  // mean 2, biased variance 1, unbiased 2
  const double root = std::sqrt(1 + 1e-5);
  CHECK(n.mean[0] == 2);
  CHECK(n.inv_std[0] == 1 / root);
  CHECK(n.y[0] == -1 / root * 2 + 10);
  CHECK(std::fabs(n.new_mean[0] - 4.7) <= 4 * 0x1p-52);
  CHECK(std::fabs(n.new_var[0] - 1.1) <= 2 * 0x1p-52);
  n.training = false;
  n.run(active_kernels().f64);
  CHECK(n.mean[0] == 5);
  CHECK(n.new_var[0] == 1);
  CHECK(n.y[1] == (3.0 - 5) / root * 2 + 10);
}

TEST_CASE("batch_norm: PyTorch's CPU gives a constant channel the error of a product") {
  const float mean = 1.1F, w = 0.7F;
  Norm<float> n(1, 1, 2, find_accumulator("fp32_fused"));
  n.x = {mean, mean}, n.w = {w}, n.b = {0};
  n.run(active_kernels().f32);
  CHECK(n.y[0] == 0);
  for (const KernelSet* set : available_kernel_sets()) {
    set->f32.batch_norm({1, 1, 2, 1e-5, 0.1, true, n.x.data(), n.w.data(), n.b.data(),
                         n.running_mean.data(), n.running_var.data(), n.y.data(), n.new_mean.data(),
                         n.new_var.data(), n.mean.data(), n.inv_std.data(), n.accumulator,
                         &find_format("fp32")});
    const float factor = n.inv_std[0] * w;
    const double product = static_cast<double>(mean) * factor;
    CHECK(n.y[0] == static_cast<float>(product - static_cast<float>(product)));
    CHECK(n.y[0] != 0);
  }
}

TEST_CASE("kernel sets: sums inside batch_norm, softmax and losses have the scalar bits") {
  for (const Accumulator& accumulator : accumulators()) {
    Norm<float> want(40, 3, 121, accumulator);  // 4840 terms: two blocks
    want.run(scalar_kernels().f32);
    constexpr int64_t kRows = 37, kCols = 4100;
    const auto x = data<float>(kRows * kCols, 6), dy = data<float>(kRows * kCols, 7);
    std::vector<int32_t> target(kRows);
    for (int64_t i = 0; i < kRows; ++i)
      target[static_cast<size_t>(i)] = static_cast<int32_t>(i * 97);
    const auto losses = [&](const Kernels<float>& k) {
      std::vector<float> out(3 * x.size() + 1);
      const float dloss = 0.5f;
      CrossEntropyArgs<float> ce{.batch = kRows, .classes = kCols};
      ce.x = x.data(), ce.target = target.data(), ce.accumulator = &accumulator;
      ce.dloss = &dloss;
      float *y = out.data(), *dx = y + x.size(), *dx2 = dx + x.size();
      k.softmax(x.data(), y, kRows, kCols, accumulator);
      k.softmax_backward(y, dy.data(), dx, kRows, kCols, accumulator);
      ce.out = dx2;
      k.cross_entropy_backward(ce);
      ce.out = &out[3 * x.size()];
      k.cross_entropy(ce);
      return out;
    };
    const auto want_losses = losses(scalar_kernels().f32);
    for (const KernelSet* set : available_kernel_sets()) {
      for (const int threads : {1, 2}) {
        const ThreadCountGuard guard(threads);
        Norm<float> got(40, 3, 121, accumulator);
        got.run(set->f32);
        CAPTURE(set->name);
        CAPTURE(accumulator.name);
        CHECK(same_bits(got.y, want.y));
        CHECK(same_bits(got.new_var, want.new_var));
        CHECK(same_bits(got.dx, want.dx));
        CHECK(same_bits(got.dw, want.dw));
        CHECK(same_bits(losses(set->f32), want_losses));
      }
    }
  }
}

TEST_CASE("kernel sets: batch_norm of every shape, mode and kind of value has the scalar bits") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const auto check = [&]<typename T>(T, const Accumulator& accumulator) {
    for (const int64_t spatial : {1, 2, 15, 16, 17, 33, 121, 4100}) {
      for (const bool training : {true, false}) {
        for (const T special : {T(1), T(nan), T(infinity), T(-0.0)}) {
          Norm<T> want(5, 3, spatial, accumulator);
          want.training = training;
          want.x[want.x.size() / 2] = special;
          want.dy[want.dy.size() / 3] = special;
          want.run(scalar_kernels().of<T>());
          for (const KernelSet* set : available_kernel_sets()) {
            CAPTURE(set->name);
            CAPTURE(spatial);
            CAPTURE(training);
            CAPTURE(special);
            Norm<T> got(5, 3, spatial, accumulator);
            got.training = training;
            got.x = want.x, got.dy = want.dy;
            got.run(set->of<T>());
            CHECK(same_bits(got.y, want.y));
            CHECK(same_bits(got.new_var, want.new_var));
            CHECK(same_bits(got.dx, want.dx));
            CHECK(same_bits(got.dw, want.dw));
            CHECK(same_bits(got.db, want.db));
          }
        }
      }
    }
  };
  check(float(), find_accumulator("fp32_fused"));
  check(double(), fp64());
}

TEST_CASE("kernel sets: batch_norm as PyTorch's CPU fuses it has the scalar bits") {
  for (const int64_t spatial : {1, 15, 16, 121}) {
    for (const char* statistics : {"fp32", "bf16"}) {
      const auto output = [&](const KernelSet& set) {
        Norm<float> n(5, 3, spatial, find_accumulator("fp32_fused"));
        set.f32.batch_norm({5, 3, spatial, 1e-5, 0.1, true, n.x.data(), n.w.data(), n.b.data(),
                            n.running_mean.data(), n.running_var.data(), n.y.data(),
                            n.new_mean.data(), n.new_var.data(), n.mean.data(), n.inv_std.data(),
                            n.accumulator, &find_format(statistics)});
        return n.y;
      };
      for (const KernelSet* set : available_kernel_sets()) {
        CAPTURE(set->name);
        CAPTURE(spatial);
        CHECK(same_bits(output(*set), output(scalar_kernels())));
      }
    }
  }
}

TEST_CASE("softmax and losses: gradients") {
  constexpr int64_t kRows = 3, kCols = 4;
  auto x = data<double>(kRows * kCols, 1), dy = data<double>(kRows * kCols, 2);
  const std::vector<int32_t> target = {3, 0, 1};
  const auto& k = active_kernels().f64;
  std::vector<double> y(x.size()), dx(x.size());
  k.softmax(x.data(), y.data(), kRows, kCols, fp64());
  k.softmax_backward(y.data(), dy.data(), dx.data(), kRows, kCols, fp64());
  check_gradient(x, dx, [&] {
    k.softmax(x.data(), y.data(), kRows, kCols, fp64());
    return dot(y, dy);
  });
  const double dloss = 1.5;
  CrossEntropyArgs<double> ce{.batch = kRows, .classes = kCols};
  ce.x = x.data(), ce.target = target.data(), ce.dloss = &dloss, ce.accumulator = &fp64();
  ce.out = dx.data();
  k.cross_entropy_backward(ce);
  check_gradient(x, dx, [&] {
    double loss;
    ce.out = &loss;
    k.cross_entropy(ce);
    return 1.5 * loss;
  });
}

TEST_CASE(
    "cross_entropy: with every option, every kernel set and thread count has the scalar bits") {
  // 1500 rows of 21 classes, (N,C,S): several tiles. Tiles cross images, and the last one is short.
  constexpr int64_t kBatch = 4, kClasses = 21, kSpatial = 375, kRows = kBatch * kSpatial;
  const auto x = data<float>(kBatch * kClasses * kSpatial, 8), dloss = data<float>(kRows, 9);
  auto weight = data<float>(kClasses, 10);
  for (float& w : weight) w = 1.5f + w;
  std::vector<int32_t> target(kRows);
  for (int32_t i = 0; i < kRows; ++i) target[static_cast<size_t>(i)] = i % 23 == 22 ? -7 : i % 21;
  for (const Accumulator& accumulator : accumulators()) {
    for (const LossReduction reduction : {LossReduction::kMean, LossReduction::kNone}) {
      const auto results = [&](const Kernels<float>& k) {
        std::vector<float> loss(kRows), dx(x.size());
        CrossEntropyArgs<float> ce{.batch = kBatch, .classes = kClasses, .spatial = kSpatial};
        ce.x = x.data(), ce.target = target.data(), ce.class_weight = weight.data();
        ce.ignore_index = -7, ce.label_smoothing = 0.1, ce.reduction = reduction;
        ce.dloss = dloss.data(), ce.accumulator = &accumulator;
        ce.out = loss.data();
        k.cross_entropy(ce);
        ce.out = dx.data();
        k.cross_entropy_backward(ce);
        loss.insert(loss.end(), dx.begin(), dx.end());
        return loss;
      };
      const auto want = results(scalar_kernels().f32);
      for (const KernelSet* set : available_kernel_sets()) {
        for (const int threads : {1, 2}) {
          const ThreadCountGuard guard(threads);
          CAPTURE(set->name);
          CAPTURE(accumulator.name);
          CHECK(same_bits(results(set->f32), want));
        }
      }
    }
  }
}

TEST_CASE("cross_entropy: a row's bits do not depend on the rows around it or on the layout") {
  constexpr int64_t kRows = 500, kClasses = 21;
  const auto x = data<double>(kRows * kClasses, 11);
  std::vector<double> turned(x.size());  // (1,C,S)
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t c = 0; c < kClasses; ++c) {
      turned[static_cast<size_t>(c * kRows + row)] = x[static_cast<size_t>(row * kClasses + c)];
    }
  }
  std::vector<int32_t> target(kRows);
  for (int32_t i = 0; i < kRows; ++i) target[static_cast<size_t>(i)] = i % 21;
  std::vector<double> together(kRows), spread(kRows), alone(kRows);
  CrossEntropyArgs<double> ce{.batch = kRows, .classes = kClasses};
  ce.x = x.data(), ce.target = target.data(), ce.reduction = LossReduction::kNone;
  ce.accumulator = &fp64(), ce.out = together.data();
  const auto& k = active_kernels().f64;
  k.cross_entropy(ce);
  ce.batch = 1, ce.spatial = kRows, ce.x = turned.data(), ce.out = spread.data();
  k.cross_entropy(ce);
  ce.spatial = 1;
  for (int64_t row = 0; row < kRows; ++row) {
    ce.x = &x[static_cast<size_t>(row * kClasses)], ce.target = &target[static_cast<size_t>(row)];
    ce.out = &alone[static_cast<size_t>(row)];
    k.cross_entropy(ce);
  }
  CHECK(same_bits(spread, together));
  CHECK(same_bits(alone, together));
}

TEST_CASE("cross_entropy: equal logits give log(classes), large logits do not overflow") {
  const std::vector<double> equal(8, 1e300);
  const std::vector<int32_t> target = {0, 3};
  double loss = 0;
  CrossEntropyArgs<double> ce{.batch = 2, .classes = 4};
  ce.x = equal.data(), ce.target = target.data(), ce.out = &loss, ce.accumulator = &fp64();
  active_kernels().f64.cross_entropy(ce);
  CHECK(std::fabs(loss - 1.3862943611198906) <= 2 * 0x1p-52);  // 2 ln 2, half an ulp + log's ulp
  const std::vector<float> steep = {0, 200};
  const int32_t first = 0;
  float steep_loss = 0;
  CrossEntropyArgs<float> one{.batch = 1, .classes = 2};
  one.x = steep.data(), one.target = &first, one.out = &steep_loss;
  one.accumulator = &find_accumulator("fp32_fused");
  active_kernels().f32.cross_entropy(one);
  CHECK(steep_loss == 200);
}

TEST_CASE("softmax: NaN, infinities and rows of -inf give NaN") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {1,          std::nanf(""), 2,          1, kInfinity,  0,
                                -kInfinity, -kInfinity,    -kInfinity, 0, -kInfinity, 0};
  std::vector<float> y(x.size());
  active_kernels().f32.softmax(x.data(), y.data(), 4, 3, find_accumulator("fp32_fused"));
  for (const size_t i : {0, 1, 2, 3, 4, 5, 6, 7, 8}) CHECK(std::isnan(y[i]));
  CHECK(y[9] == 0.5f);
  CHECK(y[10] == 0);
}

namespace {

// Every elementwise kernel, one after the other, and the numbers of whole arrays.
template <typename T>
std::vector<T> all_elementwise(const Kernels<T>& k, const std::vector<T>& a,
                               const std::vector<T>& b) {
  std::vector<T> all, y(a.size() + 1, 42);
  const auto keep = [&] { all.insert(all.end(), y.begin(), y.end()); };
  const auto n = static_cast<int64_t>(a.size());
  k.add(a.data(), b.data(), y.data(), n), keep();
  k.mul(a.data(), b.data(), y.data(), n), keep();
  k.scale(a.data(), T(0.1), y.data(), n), keep();
  k.scale_in_double(a.data(), 0.1, y.data(), n), keep();
  k.divide(a.data(), T(3), y.data(), n), keep();
  k.divide(a.data(), T(0), y.data(), n), keep();
  k.relu(a.data(), y.data(), n), keep();
  k.relu_backward(a.data(), b.data(), y.data(), n), keep();
  k.add_channels(y.data(), b.data(), n, 1, 1), keep();
  k.add_channels(y.data(), b.data(), 1, n, 1), keep();
  k.add_channels(y.data(), b.data(), n / 5, 5, 1), keep();
  k.add_channels(y.data(), b.data(), n / 35, 5, 7), keep();
  k.add_channels(y.data(), b.data(), 1, n / 33, 33), keep();
  k.move_by_one_ulp(y.data(), RandomStream(1, RandomPurpose::kTwin, 2), 3, n), keep();
  k.movement.fill(T(-7), y.data(), n), keep();
  CHECK(y.back() == 42);
  all.push_back(k.abs_max(a.data(), n));
  all.push_back(k.all_finite(a.data(), n) ? T(1) : T(0));
  all.push_back(static_cast<T>(k.sum_of_squares(b.data(), n)));
  return all;
}

template <typename T>
void check_elementwise(size_t count, DataKind kind) {
  const auto a = make_data<T>(count, kind, find_format("fp32"), 1);
  const auto b = make_data<T>(count, kind, find_format("fp32"), 2);
  const auto want = all_elementwise(scalar_kernels().of<T>(), a, b);
  for (const KernelSet* set : available_kernel_sets()) {
    for (const int threads : {1, 3}) {
      const ThreadCountGuard guard(threads);
      CAPTURE(set->name);
      CAPTURE(count);
      CHECK(same_bits(all_elementwise(set->of<T>(), a, b), want));
    }
  }
}

}  // namespace

TEST_CASE("elementwise: every kernel set gives the scalar bits, and writes nothing beyond") {
  for (const size_t count : {1, 7, 31, 32, 33, 1000, 40001}) {
    check_elementwise<float>(count, DataKind::kSpecial);
    check_elementwise<double>(count, DataKind::kSpecial);
    check_elementwise<float>(count, DataKind::kWide);
  }
}

TEST_CASE("elementwise: division, a product in double and one ulp by hand") {
  const Kernels<float>& k = scalar_kernels().f32;
  std::vector<float> y(5);
  k.divide(std::vector<float>{1, -6, 0, -0.0f, 0x1p-149f}.data(), 3, y.data(), 5);
  CHECK(y == std::vector<float>{1.0f / 3, -2, 0, 0, 0});
  CHECK(std::signbit(y[3]));
  k.divide(y.data(), 0, y.data(), 2);
  CHECK(y[1] == -std::numeric_limits<float>::infinity());
  // (1 + 2^-23)(1 + 2^-24) is 1 + 1.5 ulp in double, below a tie in FP32: FP32's factor is 1
  const float next = 1 + 0x1p-23f;
  k.scale_in_double(&next, 1 + 0x1p-24, y.data(), 1);
  CHECK(y[0] == 1 + 0x1p-22f);
  k.scale(&next, static_cast<float>(1 + 0x1p-24), y.data(), 1);
  CHECK(y[0] == next);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> before = {1, -2, 0, kInfinity, 3, 0x1p-149f, -1, 5};
  const RandomStream signs(3, RandomPurpose::kTwin, 0);
  std::vector<float> x = before;
  k.move_by_one_ulp(x.data(), signs, 7, 8);
  int grown = 0;
  for (const size_t i : {0, 1, 4, 5, 6, 7}) {
    const bool grows = (signs.bits(7 + i) & 1) != 0;
    const float bound = grows ? std::copysign(kInfinity, before[i]) : 0.0f;
    CHECK(x[i] == std::nextafter(before[i], bound));
    grown += grows;
  }
  CHECK(grown > 0);
  CHECK(grown < 6);
  CHECK(x[2] == 0);
  CHECK(x[3] == kInfinity);
}

TEST_CASE("elementwise: zeros, NaN and aliasing") {
  const float nan = -std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {-1, -0.0f, 0, 2, nan}, dy = {1, 2, 3, 4, 5};
  std::vector<float> y(5);
  for (const KernelSet* set : available_kernel_sets()) {
    const Kernels<float>& k = set->f32;
    k.relu(x.data(), y.data(), 5);
    CHECK(std::bit_cast<uint32_t>(y[1]) == 0);
    CHECK(y[3] == 2);
    CHECK(std::bit_cast<uint32_t>(y[4]) == 0x7fc00000);  // the canonical NaN
    k.relu_backward(x.data(), dy.data(), y.data(), 5);
    CHECK(y == std::vector<float>{0, 0, 0, 4, 5});
    k.add(x.data(), dy.data(), y.data(), 4);
    CHECK(y[0] == 0);
    k.mul(y.data(), dy.data(), y.data(), 4);
    CHECK(y[3] == 24);
    k.scale(y.data(), 0.5f, y.data(), 4);
    CHECK(y[3] == 12);
  }
}

}  // namespace lockstep
