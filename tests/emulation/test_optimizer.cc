// SGD, Adam and AdamW: textbook formulas in double, FP16 arithmetic step by step, and the
// statistics.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/emulation/kernel_test_util.h"

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

// Every operation of the tests below is one rounding of a double result.
double fp16(double x) {
  return round_to_format(x, find_format("fp16"), Rounding::kNearestEven);
}

}  // namespace

TEST_CASE("sgd: three steps by hand") {
  // g = grad + 0.5 w; buf = g, then 0.5 buf + g; w -= 0.25 buf. All numbers are exact in binary.
  double w = 2, buffer = 99, update = 0;
  const double grad = 1;
  UpdateStats stats;
  const auto step = [&](bool first) {
    active_kernels().f64.sgd(
        {1, &w, &grad, &buffer, &update, 0.25, 0.5, 0.5, first, uniform_formats("fp64")}, &stats);
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
      active_kernels().f64.adam({1, &w, &grad, &m, &v, &update, lr, b1, b2, eps, decay, decoupled,
                                 t, uniform_formats("fp64")},
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
  active_kernels().f32.sgd(
      {5000, w.data(), grads.data(), buffer.data(), update.data(), 0.05, 0.9, 1e-4, false, formats},
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
  active_kernels().f32.adam(
      {1, &weight, &grad, &m, &v, &dw, 1e-3, 0.9, 0.999, 1e-8, 0, false, 1, formats}, nullptr);
  CHECK(std::isnan(weight));
  weight = 1, m = 0, v = 0;
  active_kernels().f32.adam({1, &weight, &grad, &m, &v, &dw, 1e-3, 0.9, 0.999, 1e-8, 0, false, 1,
                             uniform_formats("fp32")},
                            nullptr);
  CHECK(weight == 1);
}

TEST_CASE("optimizers: FP32 is float arithmetic, whatever the sets and threads") {
  const auto weights = make_data<float>(20000, DataKind::kSmall, find_format("fp32"), 1);
  const auto grads = make_data<float>(20000, DataKind::kWide, find_format("fp32"), 2);
  std::vector<float> update(20000);
  for (const KernelSet* set : available_kernel_sets()) {
    UpdateStats first;
    for (const int threads : {1, 2}) {
      const ThreadCountGuard guard(threads);
      auto w = weights;
      UpdateStats stats;
      set->f32.sgd({20000, w.data(), grads.data(), nullptr, update.data(), 0.05, 0, 0, true,
                    uniform_formats("fp32")},
                   &stats);
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
}

TEST_CASE("optimizers: stochastic weight rounding keeps small updates on average") {
  // dw is 1/4 of FP16's spacing at 1, so each weight moves with probability 1/4 and never to
  // nearest.
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
    active_kernels().f32.sgd(
        {kCount, w.data(), grads.data(), nullptr, update.data(), 1, 0, 0, true, formats}, &stats);
    const double moved = static_cast<double>(kCount - stats.stagnant);
    if (rounding == Rounding::kNearestEven) {
      CHECK(moved == 0);
    } else {
      const double sigma = std::sqrt(kCount * kProbability * (1 - kProbability));
      CHECK(std::fabs(moved - kCount * kProbability) <= 5 * sigma);
    }
  }
}

TEST_CASE("optimizers: the weight is rounded once, whatever the mode") {
  // w + dw is 1 -+ 2^-60: a double sum of 1, which a second rounding takes for exact.
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
    active_kernels().f32.sgd({1, &w, &row.grad, nullptr, &update, 1, 0, 0, true, formats}, nullptr);
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
  active_kernels().f32.sgd({1, &w, &grad, &buffer, &update, 1, 1, 0, false, formats}, nullptr);
  CHECK(buffer == 258);
}

TEST_CASE("optimizers: measurements tell what the roundings did") {
  // FP16, first step, gradient 2^-12: v = (1 - beta2) g^2 is about 2^-34, below 2^-25: underflow.
  const Format& format = find_format("fp16");
  const size_t count = 5000;  // two blocks
  const std::vector<float> grads(count, 0x1p-12f);
  std::vector<float> w(count, 1), m(count), v(count), update(count);
  TensorStats of_weight, of_update, of_m, of_v;
  AdamArgs<float> args{.count = static_cast<int64_t>(count),
                       .weight = w.data(),
                       .grad = grads.data(),
                       .exp_avg = m.data(),
                       .exp_avg_sq = v.data(),
                       .update = update.data(),
                       .lr = 0x1p-13,
                       .beta1 = 0.9,
                       .beta2 = 0.999,
                       .eps = 0x1p-10,
                       .weight_decay = 0,
                       .decoupled_weight_decay = false,
                       .step = 1,
                       .formats = uniform_formats("fp16"),
                       .measured = {&of_weight, &of_update, {&of_m, &of_v}}};
  UpdateStats stats;
  active_kernels().f32.adam(args, &stats);
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
  // The hash is that of what is kept.
  const auto kept = [&](const std::vector<float>& x) {
    return observe<float>(std::span<const float>(x), format).bits_hash;
  };
  CHECK(of_weight.bits_hash == kept(w));
  CHECK(of_update.bits_hash == kept(update));
  CHECK(of_m.bits_hash == kept(m));
  CHECK(of_v.bits_hash == kept(v));
  // Asking changes no bit.
  std::vector<float> w2(count, 1), m2(count), v2(count);
  args.weight = w2.data(), args.exp_avg = m2.data(), args.exp_avg_sq = v2.data();
  args.measured = {};
  active_kernels().f32.adam(args, nullptr);
  CHECK(same_bits(w, w2));
  CHECK(same_bits(m, m2));
  CHECK(same_bits(v, v2));
}

TEST_CASE("optimizers: without narrow formats a measurement is quantize's") {
  // FP32 arithmetic, BF16 weights: before is w + dw, after its rounding.
  const auto weights = make_data<float>(9000, DataKind::kSmall, find_format("bf16"), 1);
  const auto grads = make_data<float>(9000, DataKind::kSmall, find_format("bf16"), 2);
  OptimizerFormats formats = uniform_formats("fp32");
  formats.weight = &find_format("bf16");
  std::vector<float> w = weights, update(9000), exact(9000), rounded(9000);
  TensorStats measured, want;
  active_kernels().f32.sgd({.count = 9000,
                            .weight = w.data(),
                            .grad = grads.data(),
                            .momentum_buffer = nullptr,
                            .update = update.data(),
                            .lr = 0x1p-4,
                            .momentum = 0,
                            .weight_decay = 0,
                            .first_step = true,
                            .formats = formats,
                            .measured = {.weight = &measured}},
                           nullptr);
  uint64_t whole = 0;  // sums that are floats, most of them
  for (size_t i = 0; i < exact.size(); ++i) {
    exact[i] = weights[i] + update[i];
    whole += double(exact[i]) == double(weights[i]) + double(update[i]);
  }
  quantize<float>(exact, rounded, {formats.weight}, &want);
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
  active_kernels().f32.sgd(
      {kCount, w.data(), grads.data(), buffer.data(), update.data(), 1, 0.5, 0, true, formats},
      nullptr);
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
    active_kernels().f64.adam({1, &w, &grad, &m, &v, &update, 0.01, kBeta1, 0.99, 1e-8, 0, false, 2,
                               uniform_formats("fp64")},
                              nullptr);
    CHECK(m == grad - (grad - start) * (1 - weight));
    differ += m != start + weight * (grad - start);
  }
  CHECK(differ > 0);
}

}  // namespace lockstep
