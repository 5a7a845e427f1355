// The fused pass: every instruction set against the scalar kernel, bit for bit, statistics
// included, and the scalar kernel against a recount by other means.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "emulation/block_pass.h"
#include "emulation/kernel_set.h"
#include "emulation/oracle.h"
#include "emulation/quantize.h"
#include "emulation/reduction.h"
#include "emulation/scalar/quantize.h"
#include "emulation/simd/quantize.h"
#include "emulation/simd/targets.h"
#include "src/core/parallel.h"
#include "src/core/random.h"

using namespace lockstep;

namespace {

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();

struct VectorKernels {
  const char* name;
  bool (*available)();
  decltype(&avx2_quantize) quantize;
  decltype(&avx2_compare) compare;
};
constexpr VectorKernels kVectorKernels[] = {
    {"avx2", cpu_has_avx2, avx2_quantize, avx2_compare},
    {"avx512", cpu_has_avx512, avx512_quantize, avx512_compare},
};

// The kernels this CPU runs; the others are reported.
std::vector<VectorKernels> vector_kernels() {
  std::vector<VectorKernels> list;
  for (const VectorKernels& k : kVectorKernels) {
    if (k.available()) {
      list.push_back(k);
    } else {
      MESSAGE("SKIPPED: 1 instruction set: this CPU lacks " << k.name);
    }
  }
  return list;
}

struct RestoreThreads {
  int count = thread_count();
  ~RestoreThreads() { set_thread_count(count); }
};

std::vector<const Format*> tested_formats() {
  std::vector<const Format*> list;
  for (const Format& f : formats()) {
    if (!f.is_fp64()) list.push_back(&f);
  }
  for (const char* name :
       {"e4m3", "e2m1", "e3m4", "e6m9", "e7m8", "e7m21", "e7m22", "e5m23", "e8m1", "e8m22"}) {
    list.push_back(&find_format(name));
  }
  for (const char* name :
       {"fp16+flush_in", "fp16+flush_out", "fp16+saturate", "bf16+flush_in",
        "bf16+saturate+flush_out", "fp8_e4m3+saturate", "fp8_e5m2+saturate+flush_in",
        "fp8_e4m3fnuz+saturate+flush_out", "fp32+flush_in", "fp32+saturate"}) {
    list.push_back(&find_format(name));
  }
  return list;
}

// What an array may look like.
enum class Content { kTame, kWild, kBits };

// kTame: within the format's range; kWild: with limits, infinities, NaNs among them; kBits: any
// bits.
std::vector<float> make_data(int64_t count, const Format& f, Content content, uint32_t index) {
  const RandomStream stream(2024, RandomPurpose::kTest, index);
  const float max = static_cast<float>(f.max_finite), least = static_cast<float>(f.min_normal());
  const float specials[] = {0.0f,
                            max,
                            std::nextafter(max, kFloatInfinity),
                            max * 2,
                            least,
                            least / 2,
                            std::nextafter(least, 0.0f),
                            0x1p-149f,
                            0x1p-126f,
                            0x1.fffffep127f,
                            kFloatInfinity,
                            std::nanf(""),
                            1.0f};
  std::vector<float> data(static_cast<size_t>(count));
  for (size_t i = 0; i < data.size(); ++i) {
    const uint32_t bits = stream.bits(2 * i), more = stream.bits(2 * i + 1);
    if (content == Content::kBits) {
      data[i] = std::bit_cast<float>(bits);
      continue;
    }
    const float sign = (more & 1) != 0 ? -1.0f : 1.0f;
    if (content == Content::kWild && more % 16 == 0) {
      data[i] = sign * specials[(more >> 8) % std::size(specials)];
      continue;
    }
    // Exponents from below the subnormals to the top, on few enough fraction bits to meet ties.
    const int span = f.emax - f.emin + f.precision + 4;
    const int e = f.emax - 1 - static_cast<int>((more >> 1) % static_cast<uint32_t>(span));
    const uint32_t fraction = (more >> 20 & 3) != 0 ? bits >> 9 : bits >> 9 & 0x7ff << 12;
    const double x = std::ldexp(1 + fraction * 0x1p-23, e);
    data[i] = (more >> 22) % 8 == 0 ? sign * 0.0f : sign * static_cast<float>(x);
  }
  return data;
}

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// The name of the first statistic that differs, or "".
std::string difference(const TensorStats& a, const TensorStats& b) {
  const ErrorStats none;
  for (const Statistic& row : statistics()) {
    const bool equal = row.kind == StatisticKind::kCount
                           ? row.count(a, none) == row.count(b, none)
                           : same_bits(row.moment(a, none), row.moment(b, none));
    if (!equal) return std::string(row.name);
  }
  if (a.bits_hash != b.bits_hash) return "bits_hash";
  return a.exponent_histogram == b.exponent_histogram ? "" : "exponent_histogram";
}
std::string difference(const ErrorStats& a, const ErrorStats& b) {
  const TensorStats none;
  for (const Statistic& row : statistics()) {
    const bool equal = row.kind == StatisticKind::kCount
                           ? row.count(none, a) == row.count(none, b)
                           : same_bits(row.moment(none, a), row.moment(none, b));
    if (!equal) return std::string(row.name);
  }
  return "";
}

std::string difference(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
      return "element " + std::to_string(i);
    }
  }
  return "";
}

// One kernel on one array in every way of calling it; "" or what differs from scalar.
std::string check_kernel(const VectorKernels& kernel, const std::vector<float>& data,
                         const QuantizeSpec& spec, const std::vector<float>& expected,
                         const TensorStats& expected_stats) {
  const auto count = static_cast<int64_t>(data.size());
  TensorStats stats;
  std::vector<float> out(data.size());
  kernel.quantize(data.data(), out.data(), count, spec, &stats);
  std::string wrong = difference(expected, out) + difference(expected_stats, stats);
  if (!wrong.empty()) return "out of place: " + wrong;
  out = data;
  kernel.quantize(out.data(), out.data(), count, spec, &stats);
  wrong = difference(expected, out) + difference(expected_stats, stats);
  if (!wrong.empty()) return "in place: " + wrong;
  out = data;
  kernel.quantize(out.data(), out.data(), count, spec, nullptr);
  wrong = difference(expected, out);
  return wrong.empty() ? "" : "without statistics: " + wrong;
}

}  // namespace

TEST_CASE("vector kernels equal the scalar kernel for every format, rounding and size") {
  const RestoreThreads restore;
  const auto kernels = vector_kernels();
  const int64_t sizes[] = {1, 31, 32, 33, 1000, 4096, 4097, 70000};
  int64_t cases = 0;
  for (const Format* format : tested_formats()) {
    for (const RoundingInfo& mode : roundings()) {
      for (const int64_t size : sizes) {
        // The largest arrays are for the joins of chunks: two formats, two roundings see them.
        const bool large = size > 2 * kReductionBlock;
        const bool nearest = mode.rounding == Rounding::kNearestEven;
        if (large && !(nearest || mode.rounding == Rounding::kStochastic)) continue;
        if (large && format->name != "fp16" && format->name != "bf16") continue;
        for (const Content content : {Content::kTame, Content::kWild, Content::kBits}) {
          const auto data = make_data(size, *format, content, static_cast<uint32_t>(cases));
          QuantizeSpec spec{format, mode.rounding, {.seed = 7, .stream = 1, .site = 3, .step = 9}};
          std::vector<float> expected(data.size());
          TensorStats stats;
          set_thread_count(1);
          scalar_quantize(data.data(), expected.data(), size, spec, &stats);
          for (const VectorKernels& kernel : kernels) {
            for (const int threads : {1, 2}) {
              if (threads == 2 && !large) continue;  // one chunk: the pool is not asked
              set_thread_count(threads);
              const std::string wrong = check_kernel(kernel, data, spec, expected, stats);
              ++cases;
              if (wrong.empty()) continue;
              INFO(kernel.name << " " << format->name << " " << mode.name << " size " << size);
              CHECK(wrong == "");
            }
          }
        }
      }
    }
  }
  CHECK(cases > 2000 * static_cast<int64_t>(kernels.size()));
}

// Large arrays are stored past the caches: another path through the same pass.
TEST_CASE("vector kernels equal the scalar kernel on an array larger than the caches") {
  constexpr size_t kCount = (size_t{9} << 20) + 3;  // 36 MiB and an incomplete row
  std::vector<float> before(kCount), want(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    before[i] = (static_cast<float>(i % 8191) - 4095.5f) * (i % 3 == 0 ? 0x1p-20f : 0x1p-8f);
  }
  const auto count = static_cast<int64_t>(kCount);
  for (const char* name : {"fp16", "bf16"}) {
    const QuantizeSpec spec{.format = &find_format(name)};
    TensorStats want_stats;
    scalar_kernels().f32.quantize(before.data(), want.data(), count, spec, &want_stats);
    for (const KernelSet* set : available_kernel_sets()) {
      if (set == &scalar_kernels()) continue;
      for (const bool measured : {true, false}) {
        // That path asks for whole cache lines.
        constexpr size_t kLine = 64;
        std::vector<float> storage(kCount + kLine / sizeof(float));
        void* place = storage.data();
        size_t space = storage.size() * sizeof(float);
        auto* after = static_cast<float*>(std::align(kLine, kCount * sizeof(float), place, space));
        REQUIRE(after != nullptr);
        TensorStats stats;
        set->f32.quantize(before.data(), after, count, spec, measured ? &stats : nullptr);
        CAPTURE(name);
        CAPTURE(set->name);
        CHECK(std::memcmp(after, want.data(), kCount * sizeof(float)) == 0);
        if (!measured) continue;
        CHECK(stats.bits_hash == want_stats.bits_hash);
        CHECK(stats.inexact == want_stats.inexact);
        CHECK(stats.sum_sq == want_stats.sum_sq);
        CHECK(stats.round_err_sq == want_stats.round_err_sq);
        CHECK(stats.exponent_histogram == want_stats.exponent_histogram);
      }
    }
  }
}

TEST_CASE("measuring alone: nothing is stored, after == before") {
  const Format &fp16 = find_format("fp16"), &fp64 = find_format("fp64");
  const auto kernels = vector_kernels();
  for (const Format* format : {&fp16, &fp64}) {
    const auto data = make_data(5000, fp16, Content::kWild, 77);
    QuantizeSpec spec{.format = format, .measure_only = true};
    TensorStats scalar;
    scalar_quantize<float>(data.data(), nullptr, 5000, spec, &scalar);
    CHECK(scalar.inexact == 0);
    CHECK(scalar.to_zero == 0);
    CHECK(scalar.to_infinity == 0);
    CHECK(scalar.round_err_sq == 0);
    CHECK(scalar.count == 5000);
    for (const VectorKernels& kernel : kernels) {
      TensorStats stats;
      kernel.quantize(data.data(), nullptr, 5000, spec, &stats);
      CHECK(difference(scalar, stats) == "");
    }
  }
  // Of values of the format, the statistics are those of rounding them once more.
  std::vector<float> values = make_data(5000, fp16, Content::kWild, 78);
  const QuantizeSpec round{.format = &fp16};
  scalar_quantize(values.data(), values.data(), 5000, round, nullptr);
  TensorStats again;
  scalar_quantize(values.data(), values.data(), 5000, round, &again);
  CHECK(difference(observe<float>(values, fp16), again) == "");
}

TEST_CASE("the scalar statistics equal a recount by other means") {
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
  // No infinity here: what leaves the finite numbers becomes NaN.
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
  // n = 256 + 4 + 2 additions (emulation/reduction.h) and 3 roundings in each term.
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

TEST_CASE("sums of floats are formed in groups, in whatever binades the values lie") {
  const Format &fp16 = find_format("fp16"), &fp32 = find_format("fp32");
  // 5037 elements: a block, and 14 groups, 2 rows and 13 elements of another.
  const auto base = make_data(5037, fp16, Content::kTame, 11);
  std::vector<float> x(base.size()), y(base.size());
  const QuantizeSpec observing{.format = &fp32, .measure_only = true};
  double sums[3] = {};
  // Scaled in the first and the last; 2^-126 is the least normal number, 2^-25 fp16's data's.
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
  // Of positive terms: |s - exact| <= gamma of float for 4 additions, and of double for the rest.
  TensorStats s;
  quantize<float>(base, y, {.format = &fp16}, &s);
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

TEST_CASE("in which blocks sums are formed in groups") {
  const StatsLimits fp16(find_format("fp16")), fp32(find_format("fp32"));
  const auto grouped = [](float least, float largest, const StatsLimits& limits) {
    const uint32_t low = std::bit_cast<uint32_t>(least), high = std::bit_cast<uint32_t>(largest);
    return find_group_rule(low, high, limits).grouped;
  };
  CHECK(grouped(0, 0, fp16));
  CHECK(grouped(0x1p-24f, 65504.0f, fp16));
  CHECK(!grouped(1.0f, 65536.0f, fp16));
  CHECK(grouped(0x1p-114f, 0x1p-110f, fp16));  // 100 binades below 2^-14
  CHECK(!grouped(0x1p-115f, 0x1p-110f, fp16));
  CHECK(grouped(0x1p-126f, 0x1p-26f, fp32));
  CHECK(!grouped(0x1p-127f, 0x1p-126f, fp32));  // a subnormal number
  CHECK(!grouped(0x1p-50f, 0x1p51f, fp32));
  CHECK(!grouped(1.0f, kFloatInfinity, fp32));
}

TEST_CASE("saturation is counted") {
  const float x[] = {1e5f, -1e5f, 70000.0f, 65504.0f, kFloatInfinity};
  float y[5];
  TensorStats s;
  quantize<float>(x, y, {&find_format("fp16"), Rounding::kTowardZero}, &s);
  CHECK(s.saturated == 3);
  CHECK(s.to_infinity == 0);
  CHECK(y[1] == -65504.0f);
  CHECK(std::isinf(y[4]));
}

TEST_CASE("flushes, saturated infinities and NaN in formats without any are counted") {
  const float x[] = {0x1p-15f,        -0x1.fffp-15f, 0x1p-14f, 1e5f,
                     -kFloatInfinity, std::nanf(""), -0.0f};
  const auto count = [&](const char* name) {
    float y[7];
    TensorStats s;
    quantize<float>(x, y, {.format = &find_format(name)}, &s);
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
  s = count("fp8_e4m3fnuz");  // -0 becomes +0, which is equal to it
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
  quantize<double>(x, y, {.format = &find_format("fp32")}, &s);
  CHECK(std::isinf(y[0]));
  CHECK(s.to_infinity == 1);
  CHECK(s.to_zero == 2);
  CHECK(s.exponent_histogram[255] == 2);  // 1e300 and NaN
  CHECK(s.exponent_histogram[127] == 1);
  CHECK(s.exponent_histogram[0] == 4);
  CHECK(s.abs_min_nonzero == 0x1p-1074);
  CHECK(std::signbit(y[1]));
  TensorStats observed = observe<double>(x, find_format("fp64"));
  CHECK(observed.inexact == 0);
  CHECK(observed.abs_max == 1e300);
}

TEST_CASE("a float container refuses fp64") {
  float x = 1;
  const QuantizeSpec spec{.format = &find_format("fp64")};
  CHECK_THROWS_AS(scalar_quantize(&x, &x, 1, spec, nullptr), std::logic_error);
  for (const VectorKernels& kernel : vector_kernels()) {
    CHECK_THROWS_AS(kernel.quantize(&x, &x, 1, spec, nullptr), std::logic_error);
  }
}

TEST_CASE("arrays of no elements") {
  TensorStats s;
  s.count = 5;
  for (const KernelSet* set : available_kernel_sets()) {
    set->f32.quantize(nullptr, nullptr, 0, {.format = &find_format("fp16")}, &s);
    CHECK(difference(s, TensorStats()) == "");
    ErrorStats e;
    e.compared = 5;
    set->f32.compare(nullptr, nullptr, 0, 1, find_format("fp16"), &e);
    CHECK(difference(e, ErrorStats()) == "");
  }
}

TEST_CASE("stochastic rounding is unbiased within 5 sigma, for every format") {
  const int64_t n = 100000;
  uint32_t site = 0;
  for (const Format* format : tested_formats()) {
    const Format& f = *format;
    if (f.precision > 11) continue;  // the points below lie between two values
    // Between 1 and the next, below the smallest normal number, below the smallest number.
    const double step = std::ldexp(1.0, f.emin - f.precision + 1);
    for (const double x : {1 + 0.3 * f.machine_epsilon(), -1.5 - 0.7 * f.machine_epsilon(),
                           f.min_normal() - 0.6 * step, -0.2 * step}) {
      const float input = static_cast<float>(x);
      const std::vector<float> data(n, input);
      std::vector<float> out(n);
      TensorStats s;
      quantize<float>(data, out, {&f, Rounding::kStochastic, {.seed = 1, .site = ++site}}, &s);
      REQUIRE(s.count == n);
      const double low = round_to_format(input, f, Rounding::kTowardZero);
      const double high = round_to_format(input, f, x > 0 ? Rounding::kUp : Rounding::kDown);
      INFO(f.name << " at " << x);
      if (low == high) {  // both flushed
        CHECK(std::abs(x) < f.min_normal());
        CHECK(s.to_zero == n);
        continue;
      }
      const double p = oracle_probability_up(input, f);
      const auto ups = std::count(out.begin(), out.end(), static_cast<float>(high));
      const auto downs = std::count(out.begin(), out.end(), static_cast<float>(low));
      CHECK(ups + downs == n);
      CHECK(p > 0.1);
      CHECK(p < 0.9);
      CHECK(std::abs(static_cast<double>(ups) - p * n) < 5 * std::sqrt(n * p * (1 - p)));
    }
  }
  CHECK(site > 60);
}

TEST_CASE("the hash sees every single changed bit, every swap, and the place") {
  for (uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{4095}, uint64_t{1} << 33}) {
    for (int bit = 0; bit < 32; ++bit) {
      const float x = 1.25f, y = std::bit_cast<float>(std::bit_cast<uint32_t>(x) ^ 1u << bit);
      CHECK(hash_element(x, index) != hash_element(y, index));
    }
    for (int bit = 0; bit < 64; ++bit) {
      const double x = 1.25, y = std::bit_cast<double>(std::bit_cast<uint64_t>(x) ^ 1ull << bit);
      CHECK(hash_element(x, index) != hash_element(y, index));
    }
  }
  const auto pair = [](float a, float b) { return hash_element(a, 0) + hash_element(b, 1); };
  CHECK(pair(1, 2) != pair(2, 1));
  // Exchanges of numbers that differ in few bits, in a row and across rows.
  for (const uint64_t place : {1, 2, 15, 16, 17, 32, 4096, 65536}) {
    for (int bit = 0; bit < 32; ++bit) {
      const float x = 1.25f, y = std::bit_cast<float>(std::bit_cast<uint32_t>(x) ^ 1u << bit);
      CHECK(hash_element(x, 0) + hash_element(y, place) !=
            hash_element(y, 0) + hash_element(x, place));
      // ... and the same bit changed in two places.
      CHECK(hash_element(x, 0) + hash_element(x, place) !=
            hash_element(y, 0) + hash_element(y, place));
    }
  }
  // 2^16 arrays of two small numbers: no two hashes alike (expected collisions 2^-33).
  std::vector<uint64_t> all;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) all.push_back(pair(static_cast<float>(a), static_cast<float>(b)));
  }
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
}

TEST_CASE("comparison with the reference: vector kernels equal the scalar kernel") {
  const RestoreThreads restore;
  const auto kernels = vector_kernels();
  int64_t cases = 0;
  for (const Format* format : tested_formats()) {
    for (const int64_t size : {1, 31, 32, 33, 1000, 4097, 70000}) {
      if (size > 2 * kReductionBlock && format->name != "fp16") continue;
      for (const double scale : {1.0, 65536.0, 0x1p-20, 3.0, 1e-30}) {
        for (const Content content : {Content::kTame, Content::kWild, Content::kBits}) {
          const auto index = static_cast<uint32_t>(cases);
          const auto reference = make_data(size, *format, content, index);
          auto lane = reference;
          const auto noise = make_data(size, *format, content, index + 1000000);
          for (size_t i = 0; i < lane.size(); ++i) {
            lane[i] = i % 3 == 0 ? noise[i] : lane[i] * static_cast<float>(scale) * 1.001f;
          }
          ErrorStats expected;
          scalar_compare(lane.data(), reference.data(), size, scale, *format, &expected);
          for (const VectorKernels& kernel : kernels) {
            for (const int threads : {1, 2}) {
              set_thread_count(threads);
              ErrorStats error;
              kernel.compare(lane.data(), reference.data(), size, scale, *format, &error);
              ++cases;
              const std::string wrong = difference(expected, error);
              if (wrong.empty()) continue;
              INFO(kernel.name << " " << format->name << " size " << size << " scale " << scale);
              CHECK(wrong == "");
            }
          }
        }
      }
    }
  }
  CHECK(cases > 1000 * static_cast<int64_t>(kernels.size()));
}

TEST_CASE("comparison checked by hand") {
  const Format& fp16 = find_format("fp16");
  const float lane[] = {2.0f, 4.0f, kFloatInfinity, -8.0f};
  const float reference[] = {1.0f, 2.5f, 1.0f, -4.0f};
  const ErrorStats e = compare<float, float>(lane, reference, 2.0, fp16);
  CHECK(e.compared == 3);
  CHECK(e.err_sq == 0.25);  // 0, -0.5, 0
  CHECK(e.dot_ref == 1 + 2 * 2.5 + 16);
  CHECK(e.ref_sq == 1 + 6.25 + 16);
  CHECK(e.err_max_ulps == 1.0 / 0x1p-8);  // 0.5 * 2 at 5: ulp 2^(2-10)
  CHECK_THROWS_AS((compare<float, float>(lane, reference, 0.0, fp16)), std::logic_error);
}

TEST_CASE("the table of statistics") {
  std::vector<std::string_view> names;
  for (const Statistic& row : statistics()) {
    CAPTURE(row.name);
    CHECK((row.count == nullptr) == (row.kind == StatisticKind::kMoment));
    CHECK((row.moment == nullptr) == (row.kind == StatisticKind::kCount));
    CHECK(!row.help.empty());
    names.push_back(row.name);
  }
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
}
