// The kernels of the `cpu` engine against the software kernels under the unit's accumulator, bit
// for bit: conversions with their statistics, products, convolutions.
#include <doctest/doctest.h>

#include <stdexcept>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/cpu/gemm.h"
#include "emulation/kernels/cpu/quantize.h"
#include "emulation/kernels/scalar/kernels.h"
#include "tests/emulation/kernels/kernel_test_util.h"
#include "tests/emulation/kernels/unit_products.h"

namespace lockstep {
namespace {

bool same(double x, double y) {
  return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y);
}
void check_equal(const TensorStats& x, const TensorStats& y) {
  CHECK(x.count == y.count);
  CHECK(x.source_zero == y.source_zero);
  CHECK(x.to_zero == y.to_zero);
  CHECK(x.to_subnormal == y.to_subnormal);
  CHECK(x.to_infinity == y.to_infinity);
  CHECK(x.saturated == y.saturated);
  CHECK(x.nan == y.nan);
  CHECK(x.inexact == y.inexact);
  CHECK(same(x.abs_max, y.abs_max));
  CHECK(same(x.abs_min_nonzero, y.abs_min_nonzero));
  CHECK(same(x.sum_sq, y.sum_sq));
  CHECK(same(x.round_err_sq, y.round_err_sq));
  CHECK(x.bits_hash == y.bits_hash);
  CHECK(x.exponent_histogram == y.exponent_histogram);
}

struct Conversion {
  const char* format;
  Rounding rounding;
};
constexpr Conversion kConversions[] = {{"fp16", Rounding::kNearestEven},
                                       {"fp16", Rounding::kTowardZero},
                                       {"fp16", Rounding::kUp},
                                       {"fp16", Rounding::kDown},
                                       {"bf16+flush_in", Rounding::kNearestEven}};

// Any patterns of bits, NaNs with payloads and subnormals among them.
std::vector<float> any_bits(size_t count) {
  const RandomStream random(21, RandomPurpose::kTest, 4);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits = random.bits(i);
    if (i % 3 == 0) bits = (bits & 0x80ffffffu) | (100 + bits % 50) << 23;  // near FP16's numbers
    if (i % 7 == 0) bits &= 0x807fffffu;                                    // FP32 subnormals
    if (i % 11 == 0) bits |= 0x7f800000u;                                   // NaNs
    values[i] = std::bit_cast<float>(bits);
  }
  return values;
}

// Accumulators of units that this CPU has; the others are reported in one line.
std::vector<const Accumulator*> unit_accumulators() {
  std::vector<const Accumulator*> present;
  std::string absent;
  int tested = 0;
  for (const Accumulator& accumulator : accumulators()) {
    if (!is_unit_sum(accumulator)) continue;
    ++tested;
    if (cpu_has(cpu_unit_of(accumulator)->unit)) {
      present.push_back(&accumulator);
    } else {
      absent += " " + accumulator.name;
    }
  }
  CHECK(tested == 4);
  if (!absent.empty()) MESSAGE("SKIPPED: accumulators of units that this CPU lacks:" << absent);
  return present;
}

}  // namespace

TEST_CASE("cpu: conversions equal the software kernels, statistics included") {
  int compared = 0;
  std::string absent;
  for (const Conversion& c : kConversions) {
    const Format& format = find_format(c.format);
    const CpuUnitInfo* unit = cpu_unit_of(format, c.rounding);
    REQUIRE(unit != nullptr);
    if (!cpu_has(unit->unit)) {
      absent += " " + std::string(unit->name);
      continue;
    }
    CAPTURE(c.format);
    CAPTURE(std::string(to_string(c.rounding)));
    for (const int64_t count : {1, 31, 32, 33, 1000, 4097, 70001}) {
      const std::vector<float> before = any_bits(static_cast<size_t>(count));
      const QuantizeSpec spec{.format = &format, .rounding = c.rounding};
      std::vector<float> expected(before), after(before), in_place(before);
      TensorStats expected_stats, stats;
      active_kernels().f32.quantize(before.data(), expected.data(), count, spec, &expected_stats);
      const Kernels<float>& kernels = cpu_engine_kernels().f32;
      kernels.quantize(before.data(), after.data(), count, spec, nullptr);
      CHECK(same_bits(after, expected));
      kernels.quantize(in_place.data(), in_place.data(), count, spec, &stats);
      CHECK(same_bits(in_place, expected));
      check_equal(stats, expected_stats);
      ++compared;
    }
  }
  if (!absent.empty()) MESSAGE("SKIPPED: conversions of units that this CPU lacks:" << absent);
  CHECK(compared > 0);
}

TEST_CASE("cpu: the software kernels do conversions that no unit has") {
  CHECK(cpu_unit_of(find_format("fp16"), Rounding::kStochastic) == nullptr);
  CHECK(cpu_unit_of(find_format("bf16"), Rounding::kNearestEven) == nullptr);  // keeps subnormals
  CHECK(cpu_unit_of(find_format("bf16+flush_in"), Rounding::kUp) == nullptr);
  CHECK(cpu_unit_of(find_format("tf32"), Rounding::kNearestEven) == nullptr);
  const std::vector<float> before = any_bits(1000);
  for (const char* name : {"bf16", "fp8_e4m3", "tf32", "fp32", "fp16+saturate"}) {
    const QuantizeSpec spec{.format = &find_format(name)};
    std::vector<float> expected(before), after(before);
    TensorStats expected_stats, stats;
    active_kernels().f32.quantize(before.data(), expected.data(), 1000, spec, &expected_stats);
    cpu_engine_kernels().f32.quantize(before.data(), after.data(), 1000, spec, &stats);
    CAPTURE(name);
    CHECK(same_bits(after, expected));
    check_equal(stats, expected_stats);
  }
}

TEST_CASE("cpu: products equal the software kernels under the unit's accumulator") {
  int compared = 0;
  for (const Accumulator* accumulator : unit_accumulators()) {
    compared += check_products(*accumulator, unit_problems(), cpu_engine_kernels().f32.gemm);
  }
  if (cpu_has(CpuUnit::kAvx512Bf16)) {
    CHECK(compared >= static_cast<int>(std::size(kAllData) * unit_problems().size()));
  }
}

TEST_CASE("cpu: products do not depend on threads") {
  for (const Accumulator* accumulator : unit_accumulators()) {
    const Format& factors = unit_factor_format(*accumulator);
    // Columns of one tile: the rows are spread over the threads.
    constexpr int64_t kM = 600, kN = 30, kK = 90;
    const auto a = make_data<float>(kM * kK, DataKind::kSmall, factors, 1);
    const auto b = make_data<float>(kK * kN, DataKind::kSmall, factors, 2);
    std::vector<float> first;
    for (const int threads : {1, 2, 5}) {
      const ThreadCountGuard guard(threads);
      std::vector<float> c(kM * kN, -1.0f);
      cpu_engine_kernels().f32.gemm({.m = kM,
                                     .n = kN,
                                     .k = kK,
                                     .a = a.data(),
                                     .lda = kK,
                                     .b = b.data(),
                                     .ldb = kN,
                                     .c = c.data(),
                                     .ldc = kN,
                                     .accumulator = accumulator});
      if (first.empty()) first = c;
      CHECK(same_bits(c, first));
    }
  }
}

TEST_CASE("cpu: convolutions equal the software kernels under the unit's accumulator") {
  const auto present = unit_accumulators();
  // 7 x 5 and 7 x 3 outputs: an odd number of pixels, so that a pair of products spans two images.
  for (const int64_t width : {5, 3}) {
    ConvShape s{.batch = 3,
                .in_channels = 2,
                .in_height = 7,
                .in_width = width,
                .out_channels = 17,
                .kernel_height = 3,
                .kernel_width = 3,
                .out_height = 7,
                .out_width = width};
    s.pad_h = s.pad_w = 1;
    const auto size = [](auto... n) { return static_cast<size_t>((n * ...)); };
    const size_t x_size = size(s.batch, s.in_channels, s.in_height, s.in_width);
    const size_t y_size = size(s.batch, s.out_channels, s.out_height, s.out_width);
    const size_t w_size = size(s.out_channels, s.in_channels, s.kernel_height, s.kernel_width);
    for (const Accumulator* accumulator : present) {
      const Format& factors = unit_factor_format(*accumulator);
      const auto x = make_data<float>(x_size, DataKind::kSmall, factors, 1);
      const auto w = make_data<float>(w_size, DataKind::kSmall, factors, 2);
      const auto dy = make_data<float>(y_size, DataKind::kSmall, factors, 3);
      const auto run = [&](void (*Kernels<float>::*kernel)(const ConvArgs<float>&), size_t out) {
        std::vector<float> results[2];
        for (int i = 0; i < 2; ++i) {
          results[i].resize(out);
          const KernelSet& set = i == 0 ? cpu_engine_kernels() : scalar_kernels();
          (set.f32.*kernel)({.shape = s,
                             .x = x.data(),
                             .w = w.data(),
                             .dy = dy.data(),
                             .out = results[i].data(),
                             .accumulator = accumulator,
                             .x_format = &factors,
                             .w_format = &factors,
                             .dy_format = &factors});
        }
        CHECK(same_bits(results[0], results[1]));
      };
      CAPTURE(accumulator->name);
      run(&Kernels<float>::conv2d_forward, y_size);
      run(&Kernels<float>::conv2d_backward_input, x_size);
      run(&Kernels<float>::conv2d_backward_weight, w_size);
    }
  }
}

TEST_CASE("cpu: the software kernels form sums that no unit forms; an absent unit is an error") {
  CHECK(cpu_unit_of(find_accumulator("fp32_fused"))->unit == CpuUnit::kFma);
  CHECK(cpu_unit_of(find_accumulator("avx512_bf16"))->unit == CpuUnit::kAvx512Bf16);
  CHECK(cpu_unit_of(find_accumulator("fp32_unfused")) == nullptr);
  CHECK(cpu_unit_of(find_accumulator("hopper_fp16")) == nullptr);
  const float a[] = {1, 0.5f}, b[] = {2, 1.5f};
  for (const Accumulator& accumulator : accumulators()) {
    const Format& factors = unit_factor_format(accumulator);
    if (accumulator.format->is_fp64()) continue;
    float c = -1, expected = -1;
    GemmArgs<float> args{.m = 1, .n = 1, .k = 2, .a = a, .lda = 2, .b = b, .ldb = 1, .c = &c};
    args.ldc = 1;
    args.accumulator = &accumulator;
    args.a_format = args.b_format = &factors;
    CAPTURE(accumulator.name);
    if (is_unit_sum(accumulator) && !cpu_has(cpu_unit_of(accumulator)->unit)) {
      CHECK_THROWS_AS(cpu_engine_kernels().f32.gemm(args), std::logic_error);
      continue;
    }
    cpu_engine_kernels().f32.gemm(args);
    args.c = &expected;
    scalar_kernels().f32.gemm(args);
    CHECK(c == expected);
  }
}

}  // namespace lockstep
