// The data that vector lanes need about the factors of a tensor core's block.
// One side of a block (emulation/accumulator/aligned_block.h): its factors copied line by line, the
// range of their exponents, and the exponents themselves as bytes or as powers of two. Knows
// nothing of the addend and of sums. Included once per instruction set.
#if defined(LOCKSTEP_ALIGNED_OPERANDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_ALIGNED_OPERANDS_INL_H_
#undef LOCKSTEP_ALIGNED_OPERANDS_INL_H_
#else
#define LOCKSTEP_ALIGNED_OPERANDS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "emulation/format/format.h"
#include "emulation/kernels/simd/products/aligned_rules.h"
#include "emulation/kernels/simd/rounding/narrow-inl.h"
#include "emulation/kernels/simd/targets.h"
#include "emulation/number/number_format.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kFloatBias = 127, kFloatFractionBits = 23, kFloatPrecision = 24;
inline constexpr uint32_t kMagnitudeBits = 0x7fffffff, kExponentBits = 0x7f800000;

// The exponent byte of a factor without an exponent: a sum with it is below that of every calm
// product.
inline constexpr uint32_t kNoExponentByte = 0x80;

inline constexpr int kByteVectors = 4;  // whose exponents share a vector of bytes

// Lines (values of k) of kWidth factors each: the rows of a panel of A or the columns of a strip of
// B. Line k starts at k * kWidth.
template <int kWidth>
struct BlockSide {
  using D = hn::ScalableTag<uint32_t>;
  using V = hn::Vec<D>;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  static constexpr int kGroup = kByteVectors * kLanes;
  static constexpr int kCount = kWidth * kMostLines;
  static_assert(kWidth % kGroup == 0);

  alignas(64) float values[kCount];
  // Exponents of calm factors, two's complement. Byte v of lane i of a group is that of factor
  // i + v * kLanes, so that each vector of factors finds its exponents by one shift.
  alignas(64) uint32_t bytes[kCount / kByteVectors];
  alignas(64) float powers[kCount];  // 2^exponent, or 0 where there is none

  bool is_finite = true;
  // Bounds of the exponents of the encoding; 0 if no factor has one.
  int lowest = 0, highest = 0;

  // The position of the exponent byte of factor i of a line.
  static constexpr int byte_place(int i) {
    return i / kGroup * kGroup + i % kLanes * kByteVectors + i % kGroup / kLanes;
  }

  // Copies lines[0], lines[1], ... and computes their bytes; a null line is a line of zeros. Zeros
  // have the exponent emin where they count with it; FP32's is below every calm product's anyway.
  void gather(std::span<const float*> lines, const Format& format, ZeroProducts zeros) {
    const bool zeros_count = zeros == ZeroProducts::kFormatEmin;
    alignas(64) static constexpr float kZeros[kWidth] = {};
    for (const float*& line : lines) line = line != nullptr ? line : kZeros;
    // Formats with few exponents need no search for their smallest number.
    const bool is_narrow = 2 * format.emin >= CalmBlock::kLowestProduct;
    if (zeros_count || is_narrow) {
      copy<false>(lines, format, zeros_count);
    } else {
      copy<true>(lines, format, zeros_count);
    }
  }

  // Infinities and NaN have no exponent.
  void make_powers(int length, const Format& format, ZeroProducts zeros) {
    const D d;
    constexpr uint32_t kFp32Emin = 1;  // biased
    const uint32_t zero_field = zeros == ZeroProducts::kIgnored      ? 0
                                : zeros == ZeroProducts::kFormatEmin ? format.emin + kFloatBias
                                                                     : kFp32Emin;
    const V zero_power = hn::Set(d, zero_field << kFloatFractionBits);
    const V emin = hn::Set(d, static_cast<uint32_t>(format.emin + kFloatBias));
    for (int i = 0; i < length * kWidth; i += kLanes) {
      const V magnitude = hn::And(hn::Load(d, reinterpret_cast<const uint32_t*>(values + i)),
                                  hn::Set(d, kMagnitudeBits));
      V power = hn::ShiftLeft<kFloatFractionBits>(
          hn::Max(hn::ShiftRight<kFloatFractionBits>(magnitude), emin));
      power = hn::IfThenElse(hn::Eq(magnitude, hn::Zero(d)), zero_power, power);
      power = hn::IfThenElseZero(hn::Lt(magnitude, hn::Set(d, kExponentBits)), power);
      hn::Store(power, d, reinterpret_cast<uint32_t*>(powers + i));
    }
  }

 private:
  template <bool kFindsSmallest>
  HWY_NOINLINE void copy(std::span<const float*> lines, const Format& format, bool zeros_count) {
    const D d;
    // TF32 registers: the hardware ignores the low 13 of the 23 fraction bits.
    const bool is_tf32 = format.precision == kTf32.precision && format.emin == kTf32.emin;
    const V kept = hn::Set(d, is_tf32 ? ~uint32_t{0x1fff} : ~uint32_t{0});
    const V emin = hn::Set(d, static_cast<uint32_t>(format.emin + kFloatBias));
    const V none = hn::Set(d, zeros_count ? static_cast<uint32_t>(format.emin + kFloatBias)
                                          : (kNoExponentByte + kFloatBias) & 0xff);
    const hn::Repartition<uint8_t, D> d8;
    const auto bias = hn::Set(d8, static_cast<uint8_t>(kFloatBias));
    V largest = hn::Zero(d), smallest = hn::Set(d, ~uint32_t{0});
    uint32_t* HWY_RESTRICT out = reinterpret_cast<uint32_t*>(values);
    uint32_t* HWY_RESTRICT bytes_out = bytes;
    for (const float* line : lines) {
      for (int g = 0; g < kWidth; g += kGroup) {
        V packed = hn::Zero(d);  // biased exponents
        HWY_UNROLL(4)
        for (int v = kByteVectors - 1; v >= 0; --v) {
          const int i = g + v * kLanes;
          const V x = hn::And(hn::LoadU(d, reinterpret_cast<const uint32_t*>(line + i)), kept);
          hn::Store(x, d, out + i);
          const V magnitude = hn::And(x, hn::Set(d, kMagnitudeBits));
          largest = hn::Max(largest, magnitude);
          // Zero wraps to the largest number.
          if (kFindsSmallest) smallest = hn::Min(smallest, hn::Sub(magnitude, hn::Set(d, 1)));
          const V field = hn::Max(hn::ShiftRight<kFloatFractionBits>(magnitude), emin);
          packed = hn::Or(hn::ShiftLeft<8>(packed),
                          hn::IfThenElse(hn::Eq(magnitude, hn::Zero(d)), none, field));
        }
        hn::Store(hn::BitCast(d, hn::Sub(hn::BitCast(d8, packed), bias)), d, bytes_out);
        bytes_out += kLanes;
      }
      out += kWidth;
    }
    const uint32_t high = hn::GetLane(hn::MaxOfLanes(d, largest));
    const uint32_t low = hn::GetLane(hn::MinOfLanes(d, smallest));
    is_finite = high < kExponentBits;
    const auto exponent = [&](uint32_t magnitude) {
      return std::max(static_cast<int>(magnitude >> kFloatFractionBits) - kFloatBias, format.emin);
    };
    highest = high != 0 ? exponent(high) : zeros_count ? format.emin : 0;
    lowest = !kFindsSmallest ? format.emin : high != 0 ? exponent(low + 1) : 0;
  }
};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
