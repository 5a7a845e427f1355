// The instructions' steps, in double where that is exact or rounded to odd.
#include "emulation/accumulator/cpu_dot.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "emulation/accumulator/fast_round.h"
#include "emulation/format/power_of_two.h"
#include "emulation/format/rounding.h"

namespace lockstep {
namespace {

constexpr float kMinNormal = std::numeric_limits<float>::min();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// DAZ and FTZ: a subnormal becomes a zero of its sign.
float flush(float x) {
  return std::fabs(x) < kMinNormal ? std::copysign(0.0f, x) : x;
}

// FP32's precision with an exponent range that no sum here leaves. Decides tininess after rounding.
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

// Rounds an exact or round-to-odd sum to nearest even in FP32; flushes tiny results.
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

// Arm's mode of BFDOT without EBF: to odd, infinity from 2^128 on; results that are tiny before
// rounding are flushed.
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

// Calls step(k, a[k], b[k], a[k + 1], b[k + 1]) for every even k.
template <typename Step>
void for_pairs(const float* a, const float* b, int64_t count, Step step) {
  for (int64_t k = 0; k < count; k += 2) {
    const bool whole = k + 1 < count;
    step(k, a[k], b[k], whole ? a[k + 1] : 0.0f, whole ? b[k + 1] : 0.0f);
  }
}

// flushing_fma and its step: `target` = `addend` + the product at k.
float fma_step(DotSteps* steps, const char* target, const char* addend, int64_t k, float a, float b,
               float c) {
  const float result = flushing_fma(a, b, c);
  note_step(
      steps, target, [&] { return std::string(addend) + " + " + product_text(k); },
      odd_sum(double{a} * b, c), result);
  return result;
}

}  // namespace

float flushing_fma(float a, float b, float c) {
  const double product = double{flush(a)} * flush(b);
  return round_and_flush(odd_sum(product, flush(c)));
}

float bf16_pairs_dot(const float* a, const float* b, int64_t count, float start, DotSteps* steps) {
  float sum = start;
  for_pairs(a, b, count, [&](int64_t k, float a0, float b0, float a1, float b1) {
    const float odd = fma_step(steps, "t", "acc", k + 1, a1, b1, sum);
    sum = fma_step(steps, "acc", "t", k, a0, b0, odd);
  });
  return canonical_nan(sum);
}

float amx_tile_dot(const float* a, const float* b, int64_t count, float start, DotSteps* steps) {
  float sum = start;
  for (int64_t tile = 0; tile < count; tile += 2 * kAmxTilePairs) {
    float even = 0, odd = 0;
    for_pairs(a + tile, b + tile, std::min(count - tile, 2 * kAmxTilePairs),
              [&](int64_t k, float a0, float b0, float a1, float b1) {
                even = fma_step(steps, "even", "even", tile + k, a0, b0, even);
                odd = fma_step(steps, "odd", "odd", tile + k + 1, a1, b1, odd);
              });
    const double both_exact = odd_sum(even, odd);
    const float both = round_and_flush(both_exact);
    note_step(
        steps, "both", [] { return "even + odd"; }, both_exact, both);
    const double exact = odd_sum(sum, both);
    sum = round_and_flush(odd_sum(flush(sum), both));
    note_step(
        steps, "acc", [] { return "acc + both"; }, exact, sum);
  }
  return canonical_nan(sum);
}

float arm_pairs_dot(const float* a, const float* b, int64_t count, float start, DotSteps* steps) {
  float sum = start;
  for_pairs(a, b, count, [&](int64_t k, float a0, float b0, float a1, float b1) {
    const auto product = [&](const char* target, int64_t at, float x, float y) {
      const float p = round_to_odd_and_flush(double{flush(x)} * flush(y));
      note_step(
          steps, target, [&] { return product_text(at); }, double{x} * y, p);
      return p;
    };
    const float p0 = product("p", k, a0, b0), p1 = product("q", k + 1, a1, b1);
    const double both_exact = odd_sum(p0, p1);
    const float both = round_to_odd_and_flush(both_exact);
    note_step(
        steps, "both", [] { return "p + q"; }, both_exact, both);
    const double exact = odd_sum(sum, both);
    sum = round_to_odd_and_flush(odd_sum(flush(sum), both));
    note_step(
        steps, "acc", [] { return "acc + both"; }, exact, sum);
  });
  return canonical_nan(sum);
}

float arm_pairs_fused_dot(const float* a, const float* b, int64_t count, float start,
                          DotSteps* steps) {
  float sum = start;
  for_pairs(a, b, count, [&](int64_t k, float a0, float b0, float a1, float b1) {
    const double both_exact = odd_sum(double{a0} * b0, double{a1} * b1);
    const float both = round_nearest(both_exact);
    note_step(
        steps, "both", [&] { return product_text(k) + " + " + product_text(k + 1); }, both_exact,
        both);
    const double exact = odd_sum(sum, both);
    sum = round_nearest(exact);
    note_step(
        steps, "acc", [] { return "acc + both"; }, exact, sum);
  });
  return canonical_nan(sum);
}

uint32_t vdpbf16ps_nan(uint32_t a0, uint32_t b0, uint32_t a1, uint32_t b1, uint32_t c) {
  constexpr uint32_t kQuiet = 0x00400000, kInvalid = 0xffc00000;
  for (const uint32_t bits : {a0, b0, a1, b1, c}) {
    if (std::isnan(std::bit_cast<float>(bits))) return bits | kQuiet;
  }
  return kInvalid;
}

}  // namespace lockstep
