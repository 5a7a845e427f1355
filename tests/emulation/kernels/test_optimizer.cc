// The update rules: textbook formulas in double, FP16 arithmetic step by step, Kahan's
// compensation, and the statistics. tests/integration/compare/test_torch_optimizers.py compares
// with torch.
#include <doctest/doctest.h>

#include <algorithm>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/quantize.h"
#include "emulation/kernels/scalar/elements/optimizer.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

OptimizerFormats uniform_formats(const char* name) {
  const Format& format = find_format(name);
  return {.arithmetic = &format,
          .state = &format,
          .weight = &format,
          .rounding = Rounding::kNearestEven,
          .key = {}};
}

template <typename T>
OptimizerArrays<T> arrays(int64_t count, T* weight, const T* grad, std::vector<T*> states,
                          T* update, const OptimizerFormats& formats, int64_t step = 2) {
  OptimizerArrays<T> a{.count = count,
                       .weight = weight,
                       .grad = grad,
                       .state_count = static_cast<int>(states.size()),
                       .update = update,
                       .step = step,
                       .formats = formats};
  std::copy(states.begin(), states.end(), a.states.begin());
  return a;
}

SgdRule sgd(double lr, double momentum = 0, double decay = 0) {
  return {.lr = lr, .weight_decay = decay, .momentum = momentum};
}
AdamRule adam(double lr, double beta1, double beta2, double eps, double decay, bool decoupled) {
  return {.lr = lr,
          .weight_decay = decay,
          .decoupled_weight_decay = decoupled,
          .beta1 = beta1,
          .beta2 = beta2,
          .eps = eps};
}

// Every operation of the tests below is one rounding of a double result.
double fp16(double x) {
  return round_to_format(x, find_format("fp16"), Rounding::kNearestEven);
}

}  // namespace

// BF16 has 8 bits. 0.75 * 129/128 = 193.5/256: an elementary step rounds it to 194/256 before the
// subtraction, torch's add(alpha) does not. 0.3 is 0.30078125 in BF16.
TEST_CASE("steps: elementary operations, torch's ops, and its CPU's rounded alpha, by hand") {
  const auto step = [](OptimizerSteps steps, double lr, float weight, float grad) {
    OptimizerFormats formats = uniform_formats("bf16");
    formats.steps = steps;
    float update = 0;
    scalar_optimizer<float>(sgd(lr), arrays<float>(1, &weight, &grad, {}, &update, formats),
                            nullptr);
    return std::pair(weight, update);
  };
  const float product = 193.5F / 256, rounded = 194.F / 256;
  CHECK(step(OptimizerSteps::kElementary, 0.75, rounded, 129.F / 128) == std::pair(0.F, -rounded));
  CHECK(step(OptimizerSteps::kTorch, 0.75, rounded, 129.F / 128) ==
        std::pair(rounded - product, -product));
  CHECK(step(OptimizerSteps::kTorch, 0.3, 1, 5).first == -0.5F);
  CHECK(step(OptimizerSteps::kTorchCpu, 0.3, 1, 5).first == -0.50390625F);
}

TEST_CASE("sgd: three steps by hand") {
  // g = grad + 0.5 w; buf = g, then 0.5 buf + g; w -= 0.25 buf. All numbers are exact in binary.
  double w = 2, buffer = 99, update = 0;
  const double grad = 1;
  UpdateStats stats;
  const auto step = [&](bool first) {
    scalar_optimizer(
        sgd(0.25, 0.5, 0.5),
        arrays(1, &w, &grad, {&buffer}, &update, uniform_formats("fp64"), first ? 1 : 2), &stats);
  };
  step(true);  // g = 2, buf = 2
  CHECK(w == 1.5);
  CHECK(update == -0.5);
  step(false);  // g = 1.75, buf = 2.75
  CHECK(buffer == 2.75);
  CHECK(w == 1.5 - 0.6875);
  CHECK(stats.weight_sq == 1.5 * 1.5);
  CHECK(stats.update_sq == 0.6875 * 0.6875);
  CHECK(stats.count == 1);
  CHECK(stats.stagnant == 0);
}

TEST_CASE("adam: the formulas of torch.optim, coupled and decoupled decay") {
  for (const bool decoupled : {false, true}) {
    double w = 0.5, m = 0, v = 0, update = 0;
    double w_want = w, m_want = 0, v_want = 0;
    const double lr = 0.01, b1 = 0.9, b2 = 0.99, eps = 1e-8, decay = 0.1;
    for (int64_t t = 1; t <= 5; ++t) {
      const double grad = 0.3 * static_cast<double>(t) - 0.7;
      double g = grad;
      if (decoupled) {
        w_want *= 1 - lr * decay;
      } else {
        g += decay * w_want;
      }
      m_want = b1 * m_want + (1 - b1) * g;
      v_want = b2 * v_want + (1 - b2) * g * g;
      const double root = std::sqrt(v_want) / std::sqrt(1 - std::pow(b2, double(t))) + eps;
      w_want -= lr / (1 - std::pow(b1, double(t))) * m_want / root;
      scalar_optimizer(adam(lr, b1, b2, eps, decay, decoupled),
                       arrays(1, &w, &grad, {&m, &v}, &update, uniform_formats("fp64"), t),
                       nullptr);
      // About 16 roundings per step, relative to numbers below 1, five steps.
      constexpr double kTolerance = 16 * 5 * 0x1p-53;
      CHECK(std::fabs(w - w_want) <= kTolerance);
      CHECK(std::fabs(m - m_want) <= kTolerance);
      CHECK(std::fabs(v - v_want) <= kTolerance);
    }
  }
}

TEST_CASE("optimizers: FP16 arithmetic rounds every elementary operation") {
  const OptimizerFormats formats = uniform_formats("fp16");
  const auto weights = make_data<float>(5000, DataKind::kSmall, find_format("fp16"), 1);
  const auto grads = make_data<float>(5000, DataKind::kWide, find_format("fp16"), 2);
  auto w = weights, buffer = make_data<float>(5000, DataKind::kSmall, find_format("fp16"), 3);
  const auto old_buffer = buffer;
  std::vector<float> update(5000);
  UpdateStats stats;
  scalar_optimizer(sgd(0.05, 0.9, 1e-4),
                   arrays(5000, w.data(), grads.data(), {buffer.data()}, update.data(), formats),
                   &stats);
  uint64_t stagnant = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    const double g = fp16(grads[i] + fp16(fp16(1e-4) * weights[i]));
    const double buf = fp16(fp16(fp16(0.9) * old_buffer[i]) + g);
    const double dw = fp16(fp16(-0.05) * buf);
    REQUIRE(buffer[i] == buf);
    REQUIRE(update[i] == dw);
    REQUIRE(w[i] == fp16(weights[i] + dw));
    stagnant += dw != 0 && w[i] == weights[i];
  }
  CHECK(stats.stagnant == stagnant);
  CHECK(stagnant > 0);

  // Adam's eps of 1e-8 is zero in FP16: a zero gradient gives 0 / 0.
  float weight = 1, grad = 0, m = 0, v = 0, dw = 0;
  const AdamRule rule = adam(1e-3, 0.9, 0.999, 1e-8, 0, false);
  const float& g = grad;
  scalar_optimizer(rule, arrays(1, &weight, &g, {&m, &v}, &dw, formats, 1), nullptr);
  CHECK(std::isnan(weight));
  weight = 1, m = 0, v = 0;
  scalar_optimizer(rule, arrays(1, &weight, &g, {&m, &v}, &dw, uniform_formats("fp32"), 1),
                   nullptr);
  CHECK(weight == 1);
}

TEST_CASE("optimizers: FP32 is float arithmetic, on any number of threads") {
  const auto weights = make_data<float>(20000, DataKind::kSmall, find_format("fp32"), 1);
  const auto grads = make_data<float>(20000, DataKind::kWide, find_format("fp32"), 2);
  std::vector<float> update(20000);
  UpdateStats first;
  for (const int threads : {1, 2}) {
    const ThreadCountGuard guard(threads);
    auto w = weights;
    UpdateStats stats;
    scalar_optimizer(
        sgd(0.05),
        arrays(20000, w.data(), grads.data(), {}, update.data(), uniform_formats("fp32")), &stats);
    for (size_t i = 0; i < w.size(); ++i) {
      const float dw = -0.05f * grads[i];
      REQUIRE(w[i] == weights[i] + dw);
    }
    if (threads == 1) first = stats;
    CHECK(stats.update_sq == first.update_sq);
    CHECK(stats.weight_sq == first.weight_sq);
    CHECK(stats.stagnant == first.stagnant);
  }
}

TEST_CASE("optimizers: stochastic weight rounding keeps small updates on average") {
  // dw is 1/4 of FP16's spacing at 1: each weight moves with probability 1/4, and never with
  // rounding to nearest.
  constexpr size_t kCount = 100000;
  constexpr double kSpacing = 0x1p-10, kProbability = 0.25;
  const std::vector<float> grads(kCount, static_cast<float>(-kProbability * kSpacing));
  std::vector<float> update(kCount);
  OptimizerFormats formats = uniform_formats("fp16");
  for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
    formats.rounding = rounding;
    formats.key = {.seed = 1, .stream = 0, .site = 3, .step = 7};
    std::vector<float> w(kCount, 1);
    UpdateStats stats;
    scalar_optimizer(sgd(1), arrays(kCount, w.data(), grads.data(), {}, update.data(), formats),
                     &stats);
    const double moved = static_cast<double>(kCount - stats.stagnant);
    if (rounding == Rounding::kNearestEven) {
      CHECK(moved == 0);
    } else {
      const double sigma = std::sqrt(kCount * kProbability * (1 - kProbability));
      CHECK(std::fabs(moved - kCount * kProbability) <= 5 * sigma);
    }
  }
}

TEST_CASE("optimizers: the weight is rounded once in every mode") {
  // w + dw is 1 -+ 2^-60. A double sum is 1, which a second rounding would take for exact.
  constexpr float kTiny = 0x1p-60f;
  constexpr float kAbove = 1 + 0x1p-7f, kBelow = 1 - 0x1p-8f;  // BF16's neighbours of 1
  struct Row {
    Rounding rounding;
    float grad, want;  // w = 1, lr = 1: dw = -grad
  };
  const Row rows[] = {{Rounding::kUp, -kTiny, kAbove},  {Rounding::kUp, kTiny, 1},
                      {Rounding::kDown, kTiny, kBelow}, {Rounding::kTowardZero, kTiny, kBelow},
                      {Rounding::kOdd, -kTiny, kAbove}, {Rounding::kNearestEven, kTiny, 1}};
  OptimizerFormats formats = uniform_formats("fp32");
  formats.weight = &find_format("bf16");
  for (const Row& row : rows) {
    formats.rounding = row.rounding;
    float w = 1, update = 0;
    scalar_optimizer(sgd(1), arrays(1, &w, &row.grad, {}, &update, formats), nullptr);
    CAPTURE(to_string(row.rounding));
    CHECK(w == row.want);
  }
}

TEST_CASE("optimizers: narrow arithmetic adds wider numbers with one rounding") {
  // buffer + gradient = 2^-100 + 257: just above BF16's midpoint of 256 and 258.
  OptimizerFormats formats = uniform_formats("bf16");
  formats.state = &find_format("fp32");
  float w = 0, update = 0, buffer = 0x1p-100f;
  const float grad = 257;
  scalar_optimizer(sgd(1, 1), arrays(1, &w, &grad, {&buffer}, &update, formats), nullptr);
  CHECK(buffer == 258);
}

TEST_CASE("optimizers: measurements show the effect of the roundings") {
  // FP16, first step, gradient 2^-12: v = (1 - beta2) g^2 is about 2^-34, below 2^-25: underflow.
  const Format& format = find_format("fp16");
  const size_t count = 5000;  // two blocks
  const std::vector<float> grads(count, 0x1p-12f);
  std::vector<float> w(count, 1), m(count), v(count), update(count);
  TensorStats of_weight, of_update, of_m, of_v;
  const AdamRule rule = adam(0x1p-13, 0.9, 0.999, 0x1p-10, 0, false);
  auto args = arrays(static_cast<int64_t>(count), w.data(), grads.data(), {m.data(), v.data()},
                     update.data(), uniform_formats("fp16"), 1);
  args.measured = {&of_weight, &of_update, {&of_m, &of_v}};
  UpdateStats stats;
  scalar_optimizer(rule, args, &stats);
  CHECK(of_v.count == count);
  CHECK(of_v.to_zero == count);
  CHECK(of_v.source_zero == 0);
  CHECK(of_v.abs_max == double(fp16(1 - 0.999)) * 0x1p-24);
  CHECK(of_v.sum_sq == of_v.round_err_sq);
  CHECK(of_m.to_zero == 0);
  CHECK(of_m.inexact == count);  // (1 - beta1) g
  CHECK(of_update.count == count);
  CHECK(of_update.abs_max > 0);
  CHECK(of_weight.inexact == count);  // 1 + dw, |dw| a small part of the spacing
  CHECK(stats.stagnant == count);
  // The hash is that of the kept values.
  const auto kept = [&](const std::vector<float>& x) {
    return observe<float>(active_kernels(), std::span<const float>(x), format).bits_hash;
  };
  CHECK(of_weight.bits_hash == kept(w));
  CHECK(of_update.bits_hash == kept(update));
  CHECK(of_m.bits_hash == kept(m));
  CHECK(of_v.bits_hash == kept(v));
  // Measuring changes no bit.
  std::vector<float> w2(count, 1), m2(count), v2(count);
  args.weight = w2.data(), args.states = {m2.data(), v2.data()};
  args.measured = {};
  scalar_optimizer(rule, args, nullptr);
  CHECK(same_bits(w, w2));
  CHECK(same_bits(m, m2));
  CHECK(same_bits(v, v2));
}

TEST_CASE("optimizers: without narrow formats a measurement equals quantize's") {
  // FP32 arithmetic, BF16 weights: before is w + dw, after its rounding.
  const auto weights = make_data<float>(9000, DataKind::kSmall, find_format("bf16"), 1);
  const auto grads = make_data<float>(9000, DataKind::kSmall, find_format("bf16"), 2);
  OptimizerFormats formats = uniform_formats("fp32");
  formats.weight = &find_format("bf16");
  std::vector<float> w = weights, update(9000), exact(9000), rounded(9000);
  TensorStats measured, want;
  auto args = arrays(9000, w.data(), grads.data(), {}, update.data(), formats);
  args.measured.weight = &measured;
  scalar_optimizer(sgd(0x1p-4), args, nullptr);
  uint64_t whole = 0;  // sums that are floats; most are
  for (size_t i = 0; i < exact.size(); ++i) {
    exact[i] = weights[i] + update[i];
    whole += double(exact[i]) == double(weights[i]) + double(update[i]);
  }
  quantize<float>(active_kernels(), exact, rounded, {formats.weight}, &want);
  CHECK(same_bits(w, rounded));
  CHECK(measured.count == want.count);
  CHECK(measured.to_zero == want.to_zero);
  CHECK(measured.bits_hash == want.bits_hash);
  CHECK(measured.exponent_histogram == want.exponent_histogram);
  CHECK(measured.inexact == want.inexact);
  REQUIRE(whole == exact.size());
  // quantize adds four squares at a time in float: see GroupRule.
  constexpr double kGamma4 = 4 * 0x1p-24 / (1 - 4 * 0x1p-24);
  CHECK(std::abs(measured.sum_sq - want.sum_sq) <= kGamma4 * want.sum_sq);
  CHECK(std::abs(measured.round_err_sq - want.round_err_sq) <= kGamma4 * want.round_err_sq);
}

TEST_CASE("optimizers: states follow their own rounding and key") {
  constexpr size_t kCount = 100000;
  constexpr double kProbability = 0.25, kSpacing = 0x1p-7;  // of BF16 at 1
  const std::vector<float> grads(kCount, static_cast<float>(1 + kProbability * kSpacing));
  std::vector<float> w(kCount), buffer(kCount), update(kCount);
  OptimizerFormats formats = uniform_formats("fp32");
  formats.state = &find_format("bf16");
  formats.state_rounding = Rounding::kStochastic;
  formats.state_keys[0] = {.seed = 1, .stream = 0, .site = 3, .step = 7};
  scalar_optimizer(
      sgd(1, 0.5),
      arrays(kCount, w.data(), grads.data(), {buffer.data()}, update.data(), formats, 1), nullptr);
  const auto up = static_cast<double>(std::count(buffer.begin(), buffer.end(), 1 + 0x1p-7f));
  const auto down = static_cast<double>(std::count(buffer.begin(), buffer.end(), 1.0f));
  CHECK(up + down == kCount);
  const double sigma = std::sqrt(kCount * kProbability * (1 - kProbability));
  CHECK(std::fabs(up - kCount * kProbability) <= 5 * sigma);
}

TEST_CASE("adam: with beta1 <= 0.5 the average is formed from the gradient's side, as lerp_ does") {
  constexpr double kBeta1 = 0.3;
  const double weight = 1 - kBeta1;
  int differ = 0;
  for (int sample = 0; sample < 100; ++sample) {
    const double grad = 1.0 / (3 + sample), start = 1.0 / (7 + 2 * sample);
    double w = 0.5, m = start, v = 1, update = 0;
    scalar_optimizer(adam(0.01, kBeta1, 0.99, 1e-8, 0, false),
                     arrays(1, &w, &grad, {&m, &v}, &update, uniform_formats("fp64")), nullptr);
    CHECK(m == grad - (grad - start) * (1 - weight));
    differ += m != start + weight * (grad - start);
  }
  CHECK(differ > 0);
}

TEST_CASE("kahan: steps below half an ulp add up; to nearest, nothing moves") {
  // BF16 at 1: spacing 2^-7. 64 steps of 2^-10 are 2^-4, which is 8 spacings.
  const Format& bf16 = find_format("bf16");
  OptimizerFormats formats = uniform_formats("fp32");
  formats.weight = &bf16;
  const float grad = -0x1p-10f;
  float plain = 1, kept = 1, lost = 0, update = 0;
  uint64_t stagnant = 0;
  for (int step = 0; step < 64; ++step) {
    scalar_optimizer(sgd(1), arrays(1, &plain, &grad, {}, &update, formats), nullptr);
    auto args = arrays(1, &kept, &grad, {}, &update, formats);
    args.compensation = &lost;
    UpdateStats stats;
    scalar_optimizer(sgd(1), args, &stats);
    stagnant += stats.stagnant;
    // The weight and its compensation together are the exact sum: it fits into the two.
    CHECK(double(kept) - double(lost) == 1 + (step + 1) * 0x1p-10);
    CHECK(round_to_format(lost, bf16, Rounding::kNearestEven) == lost);
  }
  CHECK(plain == 1);
  CHECK(kept == 1 + 0x1p-4f);
  CHECK(stagnant == 64 - 8);  // one step in eight moves the weight
}

TEST_CASE("rmsprop and adagrad: two steps by hand") {
  // Squares of 2 and 4, eps 0: all roots are exact.
  const OptimizerFormats fp64 = uniform_formats("fp64");
  double w = 1, sum = 0, update = 0, grad = 2;
  const AdagradRule adagrad{.lr = 0.5, .lr_decay = 1};
  const double& g = grad;
  scalar_optimizer(adagrad, arrays(1, &w, &g, {&sum}, &update, fp64, 1), nullptr);
  CHECK(sum == 4);
  CHECK(w == 0.5);  // -0.5 * 2 / 2
  sum = 0, grad = 4;
  scalar_optimizer(adagrad, arrays(1, &w, &g, {&sum}, &update, fp64, 3), nullptr);
  CHECK(w == 0.5 - 0.5 / 3);  // lr / (1 + 2)

  // v = 0 + 0.5 * 8^2 = 32; a = 4; v - a^2 = 16: the gradient over 4; buf = 2; w -= 0.5 * 2.
  double square = 0, average = 0, buffer = 0;
  w = 1, grad = 8;
  const RmspropRule rule{.lr = 0.5, .alpha = 0.5, .momentum = 0.5, .centered = true};
  scalar_optimizer(rule, arrays(1, &w, &g, {&square, &average, &buffer}, &update, fp64), nullptr);
  CHECK(square == 32);
  CHECK(average == 4);
  CHECK(buffer == 2);
  CHECK(w == 0);
}

TEST_CASE("lion: the sign of the mix moves the weight; zero moves nothing, NaN is kept") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double grads[] = {1, -1, 0, nan};
  double w[] = {1, 1, 1, 1}, m[] = {0, 0, 0, 0}, update[4];
  const LionRule rule{
      .lr = 0.25, .weight_decay = 0.5, .decoupled_weight_decay = true, .beta1 = 0.5, .beta2 = 0.75};
  scalar_optimizer(rule, arrays(4, w, grads, {m}, update, uniform_formats("fp64")), nullptr);
  CHECK(w[0] == 1 - 0.125 - 0.25);
  CHECK(w[1] == 1 - 0.125 + 0.25);
  CHECK(w[2] == 1 - 0.125);
  CHECK(std::isnan(w[3]));
  CHECK(m[0] == 0.25);
}

}  // namespace lockstep
