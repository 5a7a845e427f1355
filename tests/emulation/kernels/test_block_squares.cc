// Square blocks, the amax of scaling, and why block formats fit into FP32 containers.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/block_quantize.h"
#include "emulation/kernels/scalar/rounding/block_squares.h"
#include "emulation/kernels/scaled_fp8.h"
#include "src/core/parallel.h"
#include "src/core/random.h"

using namespace lockstep;

namespace {

std::vector<float> random_matrix(int64_t count) {
  const RandomStream random(3, RandomPurpose::kTest, 0);
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) {
    const int exponent = static_cast<int>(random.bits(2 * i) % 12);
    x[i] = static_cast<float>(std::ldexp(2 * random.uniform(2 * i + 1) - 1, exponent));
  }
  return x;
}

BlockQuantizeSpec spec_of(const char* name) {
  return {&find_block_format(name), Rounding::kNearestEven, {}};
}

}  // namespace

TEST_CASE("squares: a matrix and its transpose are rounded equally, edges included") {
  const int64_t rows = 37, cols = 50;
  const std::vector<float> x = random_matrix(rows * cols);
  std::vector<float> transposed(x.size()), y(x.size()), z(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) transposed[c * rows + r] = x[r * cols + c];
  }
  for (const char* name : {"nvfp4", "mxfp8_e4m3+rceil"}) {
    CAPTURE(name);
    TensorStats a, b;
    scalar_quantize_block_squares(x.data(), y.data(), rows, cols, spec_of(name), &a);
    scalar_quantize_block_squares(transposed.data(), z.data(), cols, rows, spec_of(name), &b);
    int64_t wrong = 0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) wrong += y[r * cols + c] != z[c * rows + r];
    }
    CHECK(wrong == 0);
    CHECK(a.inexact == b.inexact);
    CHECK(a.to_zero == b.to_zero);
    CHECK(a.inexact > 1000);
    // In place, and on other threads.
    const int before = thread_count();
    set_thread_count(before == 1 ? 2 : 1);
    std::vector<float> in_place = x;
    TensorStats c;
    scalar_quantize_block_squares(in_place.data(), in_place.data(), rows, cols, spec_of(name), &c);
    set_thread_count(before);
    CHECK(in_place == y);
    CHECK(c.bits_hash == a.bits_hash);
    CHECK(c.sum_sq == a.sum_sq);
  }
}

TEST_CASE("squares: every instruction set equals the scalar kernel, statistics included") {
  const int threads_before = thread_count();
  int64_t cases = 0, wrong = 0;
  for (const KernelSet* set : available_kernel_sets()) {
    if (set->name == "scalar") continue;
    for (const BlockFormat& format : block_formats()) {
      for (const RoundingInfo& mode : roundings()) {
        for (const auto& [rows, cols] : {std::pair{1, 1}, {37, 50}, {130, 300}, {16, 33}}) {
          const BlockQuantizeSpec spec{.format = &format,
                                       .rounding = mode.rounding,
                                       .key = {.seed = 3, .stream = 1, .site = 4, .step = 1}};
          std::vector<float> x = random_matrix(int64_t{rows} * cols), a(x.size()), b(x.size());
          if (cases % 3 == 0) x.back() = std::numeric_limits<float>::infinity();
          TensorStats expected, got;
          set_thread_count(1);
          scalar_quantize_block_squares(x.data(), a.data(), rows, cols, spec, &expected);
          set_thread_count(2);
          set->f32.quantize_block_squares(x.data(), b.data(), rows, cols, spec, &got);
          const bool same = std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0 &&
                            expected.bits_hash == got.bits_hash &&
                            expected.inexact == got.inexact && expected.sum_sq == got.sum_sq &&
                            expected.round_err_sq == got.round_err_sq;
          wrong += !same;
          ++cases;
        }
      }
    }
  }
  set_thread_count(threads_before);
  CHECK(wrong == 0);
  if (available_kernel_sets().size() > 1) CHECK(cases >= 10 * 5 * 4);
}

TEST_CASE("squares: one row equals blocks along rows; a square shares the largest magnitude") {
  const std::vector<float> x = random_matrix(100);
  std::vector<float> squares(x.size()), lines(x.size());
  TensorStats a, b;
  scalar_quantize_block_squares(x.data(), squares.data(), 1, 100, spec_of("mxfp8"), &a);
  quantize_blocks<float>(active_kernels(), x, lines, {1, 100, 1}, spec_of("mxfp8"), &b, nullptr);
  CHECK(squares == lines);
  CHECK(a.sum_sq == b.sum_sq);
  CHECK(a.to_subnormal == b.to_subnormal);
  // 448 and 1.0625 down a column share the scale 2^6 of 448, where steps at zero are 2^5.
  const float column[] = {448, 1.0625f};
  float y[2];
  scalar_quantize_block_squares(column, y, 2, 1, spec_of("mxfp4"), nullptr);
  CHECK(y[0] == 384);  // saturated: 6 times 2^6
  CHECK(y[1] == 0);
  const float alone[] = {1.0625f};
  scalar_quantize_block_squares(alone, y, 1, 1, spec_of("mxfp4"), nullptr);
  CHECK(y[0] == 1);
}

// A value is element * 2^e, or element * an e4m3 number: at most 6 significant bits. The smallest
// is 2^-16 2^-127 (mxfp8_e5m2), FP32 has 2^-149; numbers from 2^128 on are infinite.
TEST_CASE("block values are exact in FP32 containers, for every element and every scale code") {
  int64_t checked = 0, infinite = 0;
  for (const BlockFormat& format : block_formats()) {
    CAPTURE(format.name);
    const int codes = 1 << format.element->storage_bits();
    for (int scale = 0; scale < 256; ++scale) {
      const double s = scale_value(static_cast<uint8_t>(scale), format);
      if (std::isnan(s)) continue;
      for (int code = 0; code < codes; ++code) {
        const double element = decode(static_cast<uint32_t>(code), *format.element);
        if (!std::isfinite(element)) continue;
        const float value =
            block_value(element, block_scale(static_cast<uint8_t>(scale), 1.0f, format));
        if (std::isinf(value)) {
          infinite += std::abs(element * s) >= 0x1p128;
          continue;
        }
        checked += double{value} == element * s;
      }
    }
  }
  int64_t wanted = 0;
  for (const BlockFormat& format : block_formats()) {
    for (int code = 0; code < 1 << format.element->storage_bits(); ++code) {
      const bool finite = std::isfinite(decode(static_cast<uint32_t>(code), *format.element));
      // Codes of e8m0: 255 numbers; of e4m3: 254, both signs of zero included.
      if (finite) wanted += format.scale == ScaleFormat::kE8m0 ? 255 : 254;
    }
  }
  CHECK(checked + infinite == wanted);
  CHECK(infinite < wanted / 20);
}

TEST_CASE("the scale under e4m3 block scales: 448 * 6 / amax, and its special cases") {
  const BlockFormat& nvfp4 = find_block_format("nvfp4");
  CHECK(two_level_scale(2688, nvfp4) == 1);
  CHECK(two_level_scale(7, nvfp4) == 384);
  CHECK(two_level_scale(0, nvfp4) == 1);
  CHECK(two_level_scale(std::numeric_limits<float>::infinity(), nvfp4) == 1);
  CHECK(two_level_scale(0x1p-140f, nvfp4) == std::numeric_limits<float>::max());
}
