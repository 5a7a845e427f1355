// exp by one polynomial of the third degree and the storage of binary numbers. PyTorch's CPU
// attention uses it if the result is rounded to FP16 or BF16 anyway.
//
//   t = x log2 e;  f = t - floor t;  K(f) approximates 1 + f - 2^f
//   exp x = the float whose storage word is 2^23 (t - K(f) + 127), cut to an integer:
//           floor t lands in the exponent field, 2^f - 1 in the significand's fraction
//
// Error (tested): |y / exp x - 1| <= kFastExpError, for x from ln min_normal to kFastExpMax; below,
//        0; above, infinity; -inf gives 0, NaN the canonical NaN.
// Source: A. Malossi, Y. Ineichen, C. Bekas, A. Curioni, "Fast Exponential Computation on SIMD
//         Architectures", HiPEAC 2015; PyTorch pull request 151441 (its AVX2 and AVX-512 vectors).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lockstep {

inline constexpr double kFastExpError = 0x1p-13;
inline constexpr float kFastExpMin = -0x1.5d589ep+6f;  // ln 2^-126, the next float above
inline constexpr float kFastExpMax = 0x1.61814ap+6f;   // 88.376...

inline float fast_exp(float x) {
  constexpr float kLog2E = 0x1.715476p+0f, kWord = 0x1p23f, kBias = 127 * 0x1p23f;
  // K(f) = c0 + c1 f + c2 f^2 + c3 f^3, the paper's coefficients for the third degree.
  constexpr float kC0 = 0.00010703434948458272f, kC1 = 0.30354260500649682f,
                  kC2 = -0.22433836478672356f, kC3 = -0.079204240219773236f;
  if (std::isnan(x)) return std::numeric_limits<float>::quiet_NaN();
  if (x < kFastExpMin) return 0;
  if (x > kFastExpMax) return std::numeric_limits<float>::infinity();
  const float t = x * kLog2E;
  const float f = t - std::floor(t);
  const float k = std::fma(std::fma(std::fma(kC3, f, kC2), f, kC1), f, kC0);
  return std::bit_cast<float>(static_cast<int32_t>(std::fma(kWord, t - k, kBias)));
}

}  // namespace lockstep
