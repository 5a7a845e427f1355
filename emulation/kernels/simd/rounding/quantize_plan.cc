// Which path is exact for which format.
//
//   kMagic: adding c = 1.5 * 2^k, k = max(e, emin) + 23 - M, leaves M fraction bits of x. The sum
//   stays inside c's binade as long as |x| < 2^(e+1) <= 2^(k-1), that is M <= 21; and c must be a
//   float for every finite x that does not overflow, which needs an exponent field below FP32's.
#include "emulation/kernels/simd/rounding/quantize_plan.h"

namespace lockstep {
namespace {

constexpr int kMagicMaxFractionBits = 21;

RoundPath choose_path(const QuantizeSpec& spec) {
  const Format& f = *spec.format;
  if (spec.measure_only) return RoundPath::kIdentity;
  if (f.exponent_bits > kFloatExponentBits || f.precision > kFloatPrecision) {
    return RoundPath::kScalar;
  }
  const bool wide = f.exponent_bits == kFloatExponentBits;
  if (wide && f.emin != 1 - kFloatBias) return RoundPath::kScalar;
  if (f.is_fp32()) return RoundPath::kIdentity;
  const bool signs_and_subnormals = f.has_negative_zero && f.has_subnormals();
  if (spec.rounding != Rounding::kNearestEven || !signs_and_subnormals) return RoundPath::kGeneric;
  if (f.precision == kFloatPrecision) return RoundPath::kGeneric;  // nothing to drop
  if (wide) return RoundPath::kInteger;
  const bool magic = f.precision - 1 <= kMagicMaxFractionBits;
  return magic ? RoundPath::kMagic : RoundPath::kGeneric;
}

}  // namespace

QuantizePlan::QuantizePlan(const QuantizeSpec& spec)
    : FloatFormat(*spec.format, spec.rounding), path(choose_path(spec)), rounding(spec.rounding) {
  if (rounding == Rounding::kStochastic) random = derive_array_key(spec.key);
}

}  // namespace lockstep
