// Tests the counts and sums of the fused pass: the scalar statistics against an independent
// recount, against exact arithmetic, and by hand.
#include "emulation/stats/tensor_stats.h"

#include <algorithm>
#include <numeric>

#include "emulation/format/oracle.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/block_pass.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/quantize.h"
#include "emulation/kernels/reduction.h"
#include "emulation/kernels/scalar/rounding/quantize.h"
#include "tests/emulation/kernels/quantize_cases.h"

using namespace lockstep;

TEST_CASE("the scalar statistics equal an independent recount") {
  const Format& f = find_format("fp8_e4m3");
  const auto x = make_data(9000, f, Content::kWild, 5);
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<float> y(x.size());
  TensorStats s;
  scalar_quantize(x.data(), y.data(), n, {.format = &f}, &s);
  const auto count = [&](auto test) {
    uint64_t c = 0;
    for (size_t i = 0; i < x.size(); ++i) c += test(x[i], y[i]);
    return c;
  };
  size_t wrong = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = oracle_round(static_cast<double>(x[i]), f, Rounding::kNearestEven);
    wrong += std::isnan(exact) ? !std::isnan(y[i]) : exact != y[i];
  }
  CHECK(wrong == 0);
  CHECK(s.count == 9000);
  CHECK(s.nan == count([](float a, float) { return a != a; }));
  CHECK(s.source_zero == count([](float a, float) { return a == 0; }));
  CHECK(s.to_zero + s.source_zero == count([](float, float b) { return b == 0; }));
  CHECK(s.to_subnormal ==
        count([](float, float b) { return 0 < std::fabs(b) && std::fabs(b) < 0x1p-6f; }));
  // No infinity here: results beyond the finite numbers become NaN.
  CHECK(s.to_infinity + s.nan + count([](float a, float) { return std::isinf(a); }) ==
        count([](float, float b) { return b != b; }));
  CHECK(s.inexact == count([](float a, float b) { return a == a && a != b; }));
  CHECK(s.to_zero > 0);
  CHECK(s.to_subnormal > 0);
  CHECK(s.to_infinity > 0);
  CHECK(s.nan > 0);
  CHECK(std::isinf(s.abs_max));
  CHECK(s.nonfinite_seen());
  CHECK(s.abs_min_nonzero == 0x1p-149f);
  const auto& h = s.exponent_histogram;
  CHECK(std::accumulate(h.begin(), h.end(), uint64_t{0}) == 9000);
  CHECK(h[255] == count([](float a, float) { return !std::isfinite(a); }));
  CHECK(h[127] == count([](float a, float) { return std::fabs(a) >= 1 && std::fabs(a) < 2; }));
  // Sums: against exact arithmetic. |s - exact| <= gamma_n sum of the terms (all positive), with
  // n = 256 + 4 + 2 additions (emulation/kernels/reduction.h) and 3 roundings in each term.
  Exact sum_sq, err_sq;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) continue;
    sum_sq = sum_sq + Exact(x[i]) * Exact(x[i]);
    const Exact e = Exact(x[i]) - Exact(std::isfinite(y[i]) ? y[i] : x[i]);
    err_sq = err_sq + e * e;
  }
  constexpr double u = 0x1p-53, n_roundings = 256 + 4 + 2 + 3;
  const Exact gamma(n_roundings * u / (1 - n_roundings * u));
  CHECK(!(gamma * sum_sq < (Exact(s.sum_sq) - sum_sq).magnitude()));
  CHECK(!(gamma * err_sq < (Exact(s.round_err_sq) - err_sq).magnitude()));
  CHECK(s.round_err_sq > 0);
}

TEST_CASE("sums of floats are formed in groups, in any binade") {
  const Format &fp16 = find_format("fp16"), &fp32 = find_format("fp32");
  // 5037 elements: one block, then 14 groups, 2 rows and 13 elements of another.
  const auto base = make_data(5037, fp16, Content::kTame, 11);
  std::vector<float> x(base.size()), y(base.size());
  const QuantizeSpec observing{.format = &fp32, .measure_only = true};
  double sums[3] = {};
  // Scaled in the first and the last. The least normal number is 2^-126, the least of fp16's data
  // 2^-25.
  constexpr int kExponents[] = {-90, 0, 100};
  for (int e = 0; e < 3; ++e) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(base[i], kExponents[e]);
    for (const KernelSet* set : available_kernel_sets()) {
      TensorStats s;
      set->f32.quantize(x.data(), nullptr, static_cast<int64_t>(x.size()), observing, &s);
      sums[e] = std::ldexp(s.sum_sq, -2 * kExponents[e]);
      CHECK(sums[e] == sums[0]);
    }
  }
  // All terms are positive: |s - exact| <= gamma of float for 4 additions, of double for the rest.
  TensorStats s;
  quantize<float>(active_kernels(), base, y, {.format = &fp16}, &s);
  CHECK(s.sum_sq == sums[0]);
  Exact sum_sq, err_sq;
  for (size_t i = 0; i < base.size(); ++i) {
    sum_sq = sum_sq + Exact(base[i]) * Exact(base[i]);
    const Exact error = Exact(base[i]) - Exact(y[i]);
    err_sq = err_sq + error * error;
  }
  constexpr double u = 0x1p-24, gamma = kGroupRows * u / (1 - kGroupRows * u) + 0x1p-40;
  CHECK(!(Exact(gamma) * sum_sq < (Exact(s.sum_sq) - sum_sq).magnitude()));
  CHECK(!(Exact(gamma) * err_sq < (Exact(s.round_err_sq) - err_sq).magnitude()));
  CHECK(s.round_err_sq > 0);
}

TEST_CASE("sums are formed in groups only in some blocks") {
  const StatsLimits fp16(find_format("fp16")), fp32(find_format("fp32"));
  const auto grouped = [](float least, float largest, const StatsLimits& limits) {
    const uint32_t low = std::bit_cast<uint32_t>(least), high = std::bit_cast<uint32_t>(largest);
    return find_group_rule(low, high, limits).grouped;
  };
  CHECK(grouped(0, 0, fp16));
  CHECK(grouped(0x1p-24f, 65504.0f, fp16));
  CHECK(grouped(1.0f, 65536.0f, fp16));        // overflows
  CHECK(grouped(0x1p-114f, 0x1p-110f, fp16));  // 100 binades below 2^-14
  CHECK(!grouped(0x1p-115f, 0x1p-110f, fp16));
  CHECK(grouped(0x1p-126f, 0x1p-26f, fp32));
  CHECK(!grouped(0x1p-127f, 0x1p-126f, fp32));  // a subnormal number
  CHECK(!grouped(0x1p-50f, 0x1p51f, fp32));
  CHECK(!grouped(1.0f, kInfiniteFloat, fp32));
}

TEST_CASE("saturation is counted") {
  const float x[] = {1e5f, -1e5f, 70000.0f, 65504.0f, kInfiniteFloat};
  float y[5];
  TensorStats s;
  quantize<float>(active_kernels(), x, y, {&find_format("fp16"), Rounding::kTowardZero}, &s);
  CHECK(s.saturated == 3);
  CHECK(s.to_infinity == 0);
  CHECK(y[1] == -65504.0f);
  CHECK(std::isinf(y[4]));
  // A whole group of finite numbers: the largest one of the format is not saturated.
  std::vector<float> group(kGroup, 65504.0f), rounded(kGroup);
  group[7] = 1e5f;
  quantize<float>(active_kernels(), group, rounded, {&find_format("fp16"), Rounding::kTowardZero},
                  &s);
  CHECK(s.saturated == 1);
  CHECK(s.inexact == 1);
}

TEST_CASE("flushes, saturated infinities and NaN in formats without any are counted") {
  const float x[] = {0x1p-15f,        -0x1.fffp-15f, 0x1p-14f, 1e5f,
                     -kInfiniteFloat, std::nanf(""), -0.0f};
  const auto count = [&](const char* name) {
    float y[7];
    TensorStats s;
    quantize<float>(active_kernels(), x, y, {.format = &find_format(name)}, &s);
    CHECK(s.nan == 1);
    CHECK(std::isnan(y[5]));
    return s;
  };
  TensorStats s = count("fp16+flush_in+saturate");
  CHECK(s.to_zero == 2);
  CHECK(s.to_subnormal == 0);
  CHECK(s.saturated == 2);
  CHECK(s.to_infinity == 0);
  CHECK(s.inexact == 4);
  s = count("fp16+flush_out");
  CHECK(s.to_zero == 1);
  CHECK(s.to_subnormal == 0);
  CHECK(s.saturated == 0);
  CHECK(s.to_infinity == 1);
  CHECK(s.inexact == 3);
  s = count("fp8_e4m3fnuz");  // -0 becomes +0, which equals it
  CHECK(s.source_zero == 1);
  CHECK(s.to_zero == 3);
  CHECK(s.to_infinity == 1);
  CHECK(s.inexact == 5);
  s = count("fp4_e2m1");
  CHECK(s.to_zero == 3);
  CHECK(s.saturated == 2);
}

TEST_CASE("doubles: the same statistics, bins clamped, any exponent") {
  const double x[] = {1e300, -1e-300, 1.5, 0.0, -0.0, std::nan(""), 0x1p-1074};
  double y[7];
  TensorStats s;
  quantize<double>(active_kernels(), x, y, {.format = &find_format("fp32")}, &s);
  CHECK(std::isinf(y[0]));
  CHECK(s.to_infinity == 1);
  CHECK(s.to_zero == 2);
  CHECK(s.exponent_histogram[255] == 2);  // 1e300 and NaN
  CHECK(s.exponent_histogram[127] == 1);
  CHECK(s.exponent_histogram[0] == 4);
  CHECK(s.abs_min_nonzero == 0x1p-1074);
  CHECK(std::signbit(y[1]));
  TensorStats observed = observe<double>(active_kernels(), x, find_format("fp64"));
  CHECK(observed.inexact == 0);
  CHECK(observed.abs_max == 1e300);
}

TEST_CASE("the table of statistics") {
  std::vector<std::string_view> names;
  for (const Statistic& row : statistics()) {
    CAPTURE(row.name);
    CHECK(!row.help.empty());
    TensorStats stats;  // what is written to the row's member is what the row reads
    ErrorStats error;
    std::visit(
        [&](auto member) {
          if constexpr (std::is_invocable_v<decltype(member), TensorStats&>) {
            stats.*member = 7;
          } else {
            error.*member = 7;
          }
        },
        row.member);
    const bool is_count = row.kind() == StatisticKind::kCount;
    CHECK((is_count ? static_cast<double>(row.count(stats, error)) : row.moment(stats, error)) ==
          7);
    names.push_back(row.name);
  }
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
}
