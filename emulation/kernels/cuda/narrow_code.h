// A value of a narrow format in FP32 bits to its storage bits, by shifts: the significand fits, so
// no bit is lost. For the host and for GPUs. Nothing is rounded.
#pragma once

#include <bit>
#include <cstdint>

#include "emulation/format/format.h"
#include "src/core/host_device.h"

namespace lockstep::cuda {

struct NarrowCode {
  NarrowCode() = default;
  // Requires: FP32 contains the format, of at most 16 bits.
  explicit NarrowCode(const Format& f)
      : emin(f.emin),
        fraction(f.precision - 1),
        storage(static_cast<int>(f.storage_bits())),
        nan(~(~0u << (storage - 1))),
        infinity(f.has_infinity ? nan >> fraction << fraction : nan) {}

  // Requires: x is a value of the format; NaN becomes the chips' own (7fff, 7f).
  LOCKSTEP_HOST_DEVICE uint32_t operator()(float x) const {
    constexpr int kFloatBias = 127, kFloatFraction = 23;
    constexpr uint32_t kSign = 0x80000000, kInfinity = 0x7f800000, kImplicitBit = 0x00800000;
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t magnitude = bits & ~kSign;
    if (magnitude > kInfinity) return nan;
    const uint32_t sign = bits >> 31 << (storage - 1);
    if (magnitude == kInfinity) return sign | infinity;
    const int field = static_cast<int>(magnitude >> kFloatFraction);
    const int exponent = field == 0 ? 1 - kFloatBias : field - kFloatBias;
    const int drop = kFloatFraction - fraction;
    if (field == 0 || exponent < emin) {
      const uint32_t significand =
          (magnitude & (kImplicitBit - 1)) | (field == 0 ? 0 : kImplicitBit);
      const int shift = drop + emin - exponent;
      return sign | (shift < 32 ? significand >> shift : 0);
    }
    const auto own = static_cast<uint32_t>(exponent - emin + 1);
    return sign | own << fraction | (magnitude & (kImplicitBit - 1)) >> drop;
  }

  int emin = 0, fraction = 0, storage = 0;
  uint32_t nan = 0, infinity = 0;
};

}  // namespace lockstep::cuda
