// Scales of blocks that a policy states, against the block kernels where both mean the same.
// Products that are summed block by block: tests/integration/compare/test_blockwise_recipes.py.
#include "src/execute/factor_scales.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "src/core/random.h"
#include "src/execute/scaled_casts.h"

namespace lockstep {
namespace {

// Numbers of many sizes; a row of zeros, one of subnormal floats, a NaN and an infinity.
std::vector<float> many_sizes(int64_t rows, int64_t cols) {
  const RandomStream random(5, RandomPurpose::kTest);
  std::vector<float> x(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < x.size(); ++i) {
    const auto size = static_cast<int>(random.bits(3 * i) % 40) - 20;
    x[i] = std::ldexp(static_cast<float>(random.uniform(3 * i + 1)) - 0.5f, size);
  }
  const auto row = [&](int64_t r) { return x.begin() + r * cols; };
  std::fill(row(2), row(3), 0.0f);
  for (auto it = row(3); it != row(4); ++it) *it *= 0x1p-140f;
  *row(5) = std::numeric_limits<float>::quiet_NaN();
  *(row(6) + 1) = -std::numeric_limits<float>::infinity();
  return x;
}

struct Rounded {
  std::vector<float> values;
  TensorStats stats;
  FactorScales scales;
};

Rounded rounded(const FactorFormat& to, const BlockShape& shape, const std::vector<float>& x) {
  const FactorScaling scaling;
  ScaledCasts casts(scaling);
  ScaledCast cast;
  cast.kind = ScalingKind::kBlock;
  cast.to = to;
  cast.shape = shape;
  Rounded out{std::vector<float>(x.size()), {}, {}};
  casts.run(active_kernels(), cast, x, out.values, {.format = to.element}, &out.stats, &out.scales);
  return out;
}

FactorFormat format_of(const std::string& name, bool square) {
  const BlockFormat& block = find_block_format(name);
  FactorFormat to;
  to.element = block.element;
  to.block = &block;
  to.square = square;
  return to;
}

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return false;
  }
  return a.size() == b.size();
}

TEST_CASE(
    "factor scales: powers of two with a tiny least amax are the block kernels', statistics too") {
  constexpr int64_t kRows = 150, kCols = 300;
  const std::vector<float> x = many_sizes(kRows, kCols);
  size_t compared = 0;
  for (const char* name :
       {"fp8_e4m3_block", "fp8_e5m2_block", "fp8_e4m3_line", "mxfp8_e4m3+rceil"}) {
    for (const bool square : {false, true}) {
      for (const int axis : {0, 1}) {
        CAPTURE(name);
        CAPTURE(square);
        CAPTURE(axis);
        FactorFormat to = format_of(name, square);
        const Rounded kernel = rounded(to, {kRows, kCols, axis}, x);
        to.amax_epsilon = 1e-30f;  // below every block's amax but those of zeros and subnormals
        const Rounded own = rounded(to, {kRows, kCols, axis}, x);
        // Blocks of zeros and of subnormal floats have another scale, and nearly the same values.
        size_t differ = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          const bool is_nan = std::isnan(own.values[i]) && std::isnan(kernel.values[i]);
          differ += !is_nan && own.values[i] != kernel.values[i] ? 1 : 0;
        }
        CHECK(differ <= static_cast<size_t>(kCols));
        CHECK(own.stats.count == kernel.stats.count);
        CHECK(own.stats.source_zero == kernel.stats.source_zero);
        CHECK(own.stats.nan == kernel.stats.nan);
        CHECK(own.stats.to_infinity == kernel.stats.to_infinity);
        CHECK(own.stats.saturated == kernel.stats.saturated);
        // One adds squares one by one, the other four at a time in float: tensor_stats.h.
        constexpr double kGrouped = 2.4e-7, kGroupedErrors = 3.6e-7;
        CHECK(own.stats.sum_sq == doctest::Approx(kernel.stats.sum_sq).epsilon(kGrouped));
        CHECK(own.stats.abs_max == kernel.stats.abs_max);
        CHECK(own.stats.exponent_histogram == kernel.stats.exponent_histogram);
        if (differ == 0) {
          CHECK(own.stats.to_zero == kernel.stats.to_zero);
          CHECK(own.stats.to_subnormal == kernel.stats.to_subnormal);
          CHECK(own.stats.inexact == kernel.stats.inexact);
          CHECK(own.stats.bits_hash == kernel.stats.bits_hash);
          CHECK(own.stats.round_err_sq ==
                doctest::Approx(kernel.stats.round_err_sq).epsilon(kGroupedErrors));
          ++compared;
        }
      }
    }
  }
  CHECK(compared >= 4);
}

TEST_CASE("factor scales: FP32 scales bring the largest magnitude to the largest number") {
  const std::vector<float> x = {3, -7, 0, 1e-20f, 0, 0, 448, 1};
  FactorFormat to = format_of("fp8_e4m3_line", false);
  to.fp32_scale = true;
  to.amax_epsilon = 1e-12f;
  const Rounded two_rows = rounded(to, {2, 4, 1}, x);
  CHECK(two_rows.scales.multiply == std::vector<float>{static_cast<float>(448.0 / 7), 1});
  CHECK(two_rows.scales.divide == std::vector<float>{1.0f / 64, 1});
  CHECK(equal_bits(two_rows.values, {3, -7, 0, 0, 0, 0, 448, 1}));
  CHECK(two_rows.stats.to_zero == 1);
  CHECK(two_rows.stats.inexact == 1);
  CHECK(two_rows.stats.abs_max == 448);
  const Rounded zeros = rounded(to, {1, 2, 1}, {0, -0.0f});
  CHECK(zeros.scales.multiply[0] == static_cast<float>(448.0 / static_cast<double>(1e-12f)));
  CHECK(equal_bits(zeros.values, {0, -0.0f}));
}

}  // namespace
}  // namespace lockstep
