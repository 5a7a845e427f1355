// The instructions' steps, in double where that is exact or rounded to odd.
#include "emulation/cpu_dot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "emulation/fast_round.h"
#include "emulation/power_of_two.h"
#include "emulation/rounding.h"

namespace lockstep {
namespace {

constexpr float kMinNormal = std::numeric_limits<float>::min();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// DAZ and FTZ: a subnormal becomes a zero of its sign.
float flush(float x) {
  return std::fabs(x) < kMinNormal ? std::copysign(0.0f, x) : x;
}

// FP32's precision with an exponent range that no sum here leaves: tininess after rounding is
// judged in it.
const Format& unbounded_fp32() {
  static const Format format = [] {
    Format f = find_format("fp32");
    constexpr int kWide = 1000;
    f.emin = -kWide;
    f.emax = kWide;
    f.max_finite = (2 - f.machine_epsilon()) * power_of_two(kWide);
    return f;
  }();
  return format;
}

// An exact or round-to-odd sum to nearest even in FP32, tiny results flushed.
float round_and_flush(double exact) {
  if (!std::isfinite(exact) || exact == 0) return canonical_nan(static_cast<float>(exact));
  const double rounded = round_to_format(exact, unbounded_fp32(), Rounding::kNearestEven);
  if (std::fabs(rounded) < kMinNormal) return std::copysign(0.0f, static_cast<float>(rounded));
  if (std::fabs(rounded) > std::numeric_limits<float>::max()) {
    return std::copysign(kInfinity, static_cast<float>(rounded));
  }
  return static_cast<float>(rounded);
}

double odd_sum(double x, double y) {
  return std::isfinite(x) && std::isfinite(y) ? add_round_to_odd(x, y) : x + y;
}

// Arm's mode of BFDOT without EBF: to odd, from 2^128 on infinity, tininess before rounding
// flushed.
float round_to_odd_and_flush(double exact) {
  if (!std::isfinite(exact) || exact == 0) return canonical_nan(static_cast<float>(exact));
  if (std::fabs(exact) < kMinNormal) return std::copysign(0.0f, static_cast<float>(exact));
  static const Format& fp32 = find_format("fp32");
  if (std::fabs(exact) >= power_of_two(fp32.emax + 1)) {
    return std::copysign(kInfinity, static_cast<float>(exact));
  }
  return static_cast<float>(round_to_format(exact, fp32, Rounding::kOdd));
}

float round_nearest(double exact) {
  static const Format& fp32 = find_format("fp32");
  return static_cast<float>(round_to_format(exact, fp32, Rounding::kNearestEven));
}

// Calls step(even k's factors, odd k's factors) for every pair.
template <typename Step>
void for_pairs(const float* a, const float* b, int64_t count, Step step) {
  for (int64_t k = 0; k < count; k += 2) {
    const bool whole = k + 1 < count;
    step(a[k], b[k], whole ? a[k + 1] : 0.0f, whole ? b[k + 1] : 0.0f);
  }
}

}  // namespace

float flushing_fma(float a, float b, float c) {
  const double product = double{flush(a)} * flush(b);
  return round_and_flush(odd_sum(product, flush(c)));
}

float bf16_pairs_dot(const float* a, const float* b, int64_t count, float start) {
  float sum = start;
  for_pairs(a, b, count, [&](float a0, float b0, float a1, float b1) {
    sum = flushing_fma(a0, b0, flushing_fma(a1, b1, sum));
  });
  return canonical_nan(sum);
}

float amx_tile_dot(const float* a, const float* b, int64_t count, float start) {
  float sum = start;
  for (int64_t k = 0; k < count; k += 2 * kAmxTilePairs) {
    float even = 0, odd = 0;
    for_pairs(a + k, b + k, std::min(count - k, 2 * kAmxTilePairs),
              [&](float a0, float b0, float a1, float b1) {
                even = flushing_fma(a0, b0, even);
                odd = flushing_fma(a1, b1, odd);
              });
    const float both = round_and_flush(odd_sum(even, odd));
    sum = round_and_flush(odd_sum(flush(sum), both));
  }
  return canonical_nan(sum);
}

float arm_pairs_dot(const float* a, const float* b, int64_t count, float start) {
  float sum = start;
  for_pairs(a, b, count, [&](float a0, float b0, float a1, float b1) {
    const float p0 = round_to_odd_and_flush(double{flush(a0)} * flush(b0));
    const float p1 = round_to_odd_and_flush(double{flush(a1)} * flush(b1));
    const float both = round_to_odd_and_flush(odd_sum(p0, p1));
    sum = round_to_odd_and_flush(odd_sum(flush(sum), both));
  });
  return canonical_nan(sum);
}

float arm_pairs_fused_dot(const float* a, const float* b, int64_t count, float start) {
  float sum = start;
  for_pairs(a, b, count, [&](float a0, float b0, float a1, float b1) {
    const float both = round_nearest(odd_sum(double{a0} * b0, double{a1} * b1));
    sum = round_nearest(odd_sum(sum, both));
  });
  return canonical_nan(sum);
}

}  // namespace lockstep
