// THE table of formats, and the quantities derived from a row: limits, spacing, neighbours, storage
// bits. A new format is a new row here and nothing else. Knows no spellings except the rows' own.
#include "emulation/format/format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "emulation/format/power_of_two.h"

namespace lockstep {
namespace {

constexpr auto kInfinity = OverflowRule::kInfinity;
constexpr auto kNan = OverflowRule::kNan;
constexpr auto kSaturate = OverflowRule::kSaturate;

// The limits of a row, with u = 2^-p:
//   largest finite number     (2 - 2^(1-p)) 2^emax, unless codes of the last binade are special
//   smallest normal number    2^emin
//   smallest subnormal        2^(emin-p+1)
const std::vector<Format>& table() {
  static const std::vector<Format> rows = {
      {.name = "fp64",
       .aliases = {"float64", "double", "binary64", "e11m52"},
       .precision = 53,
       .emin = -1022,
       .emax = 1023,
       .exponent_bits = 11,
       .has_infinity = true,
       .has_nan = true,
       .overflow = kInfinity,
       .max_finite = 0x1.fffffffffffffp1023,
       .help = "64 bits, max (2 - 2^-52) 2^1023 = 1.8e308, normal from 2^-1022, least 2^-1074",
       .source = "IEEE 754-2019 binary64"},
      {.name = "fp32",
       .aliases = {"float32", "float", "single", "binary32", "e8m23"},
       .precision = 24,
       .emin = -126,
       .emax = 127,
       .exponent_bits = 8,
       .has_infinity = true,
       .has_nan = true,
       .overflow = kInfinity,
       .max_finite = 0x1.fffffep127,
       .help = "32 bits, max (2 - 2^-23) 2^127 = 3.4e38, normal from 2^-126, least 2^-149",
       .source = "IEEE 754-2019 binary32"},
      {.name = "tf32",
       .aliases = {"tensorfloat32", "e8m10"},
       .precision = 11,
       .emin = -126,
       .emax = 127,
       .exponent_bits = 8,
       .has_infinity = true,
       .has_nan = true,
       .overflow = kInfinity,
       .max_finite = 0x1.ffcp127,
       .help = "19 bits in a 32-bit register, max (2 - 2^-10) 2^127 = 3.4e38, least 2^-136",
       .source = "NVIDIA A100 whitepaper (2020), \"TensorFloat-32\""},
      {.name = "fp16",
       .aliases = {"float16", "half", "binary16", "e5m10"},
       .precision = 11,
       .emin = -14,
       .emax = 15,
       .exponent_bits = 5,
       .has_infinity = true,
       .has_nan = true,
       .overflow = kInfinity,
       .max_finite = 65504.0,
       .help = "16 bits, max (2 - 2^-10) 2^15 = 65504, normal from 2^-14, least 2^-24",
       .source = "IEEE 754-2019 binary16"},
      {.name = "bf16",
       .aliases = {"bfloat16", "brain16", "e8m7"},
       .precision = 8,
       .emin = -126,
       .emax = 127,
       .exponent_bits = 8,
       .has_infinity = true,
       .has_nan = true,
       .overflow = kInfinity,
       .max_finite = 0x1.fep127,
       .help = "16 bits, max (2 - 2^-7) 2^127 = 3.4e38, normal from 2^-126, least 2^-133",
       .source =
           "Intel, \"BFLOAT16 - Hardware Numerics Definition\", 2018, §1 (layout); subnormals "
           "kept as in IEEE 754 and PyTorch. That document's units flush them: bf16+flush_in"},
      {.name = "fp8_e4m3",
       .aliases = {"float8_e4m3fn", "e4m3fn"},
       .precision = 4,
       .emin = -6,
       .emax = 8,
       .exponent_bits = 4,
       .has_infinity = false,
       .has_nan = true,
       .overflow = kNan,
       .max_finite = 448.0,
       .help = "8 bits, no infinity, S.1111.111 is NaN; max 1.75 * 2^8 = 448, normal from 2^-6, "
               "least 2^-9",
       .source = "OCP 8-bit Floating Point Specification (OFP8) 1.0, §5"},
      {.name = "fp8_e5m2",
       .aliases = {"float8_e5m2", "e5m2"},
       .precision = 3,
       .emin = -14,
       .emax = 15,
       .exponent_bits = 5,
       .has_infinity = true,
       .has_nan = true,
       .overflow = kInfinity,
       .max_finite = 57344.0,
       .help = "8 bits, IEEE rules, max 1.75 * 2^15 = 57344, normal from 2^-14, least 2^-16",
       .source = "OCP 8-bit Floating Point Specification (OFP8) 1.0, §5"},
      {.name = "fp8_e4m3fnuz",
       .aliases = {"float8_e4m3fnuz", "e4m3fnuz"},
       .precision = 4,
       .emin = -7,
       .emax = 7,
       .exponent_bits = 4,
       .has_infinity = false,
       .has_nan = true,
       .has_negative_zero = false,
       .overflow = kNan,
       .max_finite = 240.0,
       .help = "8 bits, bias 8, no infinity, no -0, 0x80 is NaN; max 1.875 * 2^7 = 240, normal "
               "from 2^-7, least 2^-10",
       .source = "Noune et al., \"8-bit Numerical Formats for Deep Neural Networks\", 2022; "
                 "AMD CDNA 3 ISA"},
      {.name = "fp8_e5m2fnuz",
       .aliases = {"float8_e5m2fnuz", "e5m2fnuz"},
       .precision = 3,
       .emin = -15,
       .emax = 15,
       .exponent_bits = 5,
       .has_infinity = false,
       .has_nan = true,
       .has_negative_zero = false,
       .overflow = kNan,
       .max_finite = 57344.0,
       .help = "8 bits, bias 16, no infinity, no -0, 0x80 is NaN; max 1.75 * 2^15 = 57344, normal "
               "from 2^-15, least 2^-17",
       .source = "Noune et al., \"8-bit Numerical Formats for Deep Neural Networks\", 2022; "
                 "AMD CDNA 3 ISA"},
      {.name = "fp6_e3m2",
       .aliases = {"float6_e3m2fn", "e3m2fn"},
       .precision = 3,
       .emin = -2,
       .emax = 4,
       .exponent_bits = 3,
       .has_infinity = false,
       .has_nan = false,
       .overflow = kSaturate,
       .max_finite = 28.0,
       .help = "6 bits, no infinity, no NaN; max 1.75 * 2^4 = 28, normal from 2^-2, least 2^-4",
       .source = "OCP Microscaling Formats (MX) 1.0, §5.3.2"},
      {.name = "fp6_e2m3",
       .aliases = {"float6_e2m3fn", "e2m3fn"},
       .precision = 4,
       .emin = 0,
       .emax = 2,
       .exponent_bits = 2,
       .has_infinity = false,
       .has_nan = false,
       .overflow = kSaturate,
       .max_finite = 7.5,
       .help = "6 bits, no infinity, no NaN; max 1.875 * 2^2 = 7.5, normal from 2^0, least 2^-3",
       .source = "OCP Microscaling Formats (MX) 1.0, §5.3.2"},
      {.name = "fp4_e2m1",
       .aliases = {"float4_e2m1fn", "e2m1fn"},
       .precision = 2,
       .emin = 0,
       .emax = 2,
       .exponent_bits = 2,
       .has_infinity = false,
       .has_nan = false,
       .overflow = kSaturate,
       .max_finite = 6.0,
       .help = "4 bits, no infinity, no NaN: 0 0.5 1 1.5 2 3 4 6 and their negatives",
       .source = "OCP Microscaling Formats (MX) 1.0, §5.3.3"},
  };
  return rows;
}

// The exponent of the last place of x's binade.
int ulp_exponent(double x, const Format& f) {
  const int e = x == 0 ? f.emin - 1 : binade_of(x);
  if (e < f.emin && !f.has_subnormals()) return f.emin;  // the only spacing left: 0 to min_normal
  return std::clamp(e, f.emin, f.emax) - f.precision + 1;
}

int bias(const Format& f) {
  return 1 - f.emin;
}
int fraction_bits(const Format& f) {
  return f.precision - 1;
}
uint64_t low_bits(int count) {
  return (uint64_t{1} << count) - 1;
}
// The code of the positive quiet NaN. In formats with infinities the whole top exponent is special,
// and a quiet NaN has its first fraction bit set. In others NaN is the code of all ones, or of -0.
uint64_t nan_code(const Format& f) {
  if (!f.has_negative_zero) return uint64_t{1} << (f.storage_bits() - 1);
  if (!f.has_infinity) return low_bits(f.storage_bits() - 1);
  return low_bits(f.exponent_bits + 1) << (fraction_bits(f) - 1);
}
// True if rounding can give an infinity.
bool yields_infinity(const Format& f) {
  return f.has_infinity && f.overflow != OverflowRule::kSaturate;
}

}  // namespace

bool Format::is_ieee_like() const {
  return has_infinity && has_nan && has_negative_zero && has_subnormals() &&
         overflow == OverflowRule::kInfinity;
}
double Format::min_normal() const {
  return power_of_two(emin);
}
double Format::min_subnormal() const {
  return power_of_two(has_subnormals() ? emin - precision + 1 : emin);
}
double Format::unit_roundoff() const {
  return power_of_two(-precision);
}
double Format::machine_epsilon() const {
  return power_of_two(1 - precision);
}

std::span<const Format> formats() {
  return table();
}

double ulp(double x, const Format& format) {
  return power_of_two(ulp_exponent(x, format));
}

bool is_representable(double x, const Format& format) {
  if (std::isnan(x)) return format.has_nan;
  if (std::isinf(x)) return yields_infinity(format);
  if (x == 0) return format.has_negative_zero || !std::signbit(x);
  if (std::abs(x) > format.max_finite) return false;
  // Scaling by a power of two is exact here: the quotient is at most 2^p, or a fraction.
  const double steps = std::ldexp(x, -ulp_exponent(x, format));
  return steps == std::trunc(steps);
}

bool contains(const Format& wide, const Format& narrow) {
  if (narrow.has_nan && !wide.has_nan) return false;
  if (narrow.has_negative_zero && !wide.has_negative_zero) return false;
  if (yields_infinity(narrow) && !yields_infinity(wide)) return false;
  if (narrow.max_finite > wide.max_finite || narrow.precision > wide.precision) return false;
  if (!wide.has_subnormals()) return narrow.min_subnormal() >= wide.min_normal();
  // The spacing above `narrow`'s least number, where it flushes subnormals, too.
  return std::ldexp(1.0, narrow.emin - narrow.precision + 1) >= wide.min_subnormal();
}

uint64_t encode(double x, const Format& format) {
  if (!is_representable(x, format)) {
    throw std::logic_error("encode: not a value of " + format.name);
  }
  const int fraction = fraction_bits(format);
  const uint64_t sign = uint64_t{std::signbit(x)} << (format.exponent_bits + fraction);
  if (std::isnan(x)) return sign | nan_code(format);
  if (std::isinf(x)) return sign | low_bits(format.exponent_bits) << fraction;
  const double magnitude = std::abs(x);
  // In units of the last place the significand is an integer below 2^p.
  const int last_place = ulp_exponent(x, format);
  if (magnitude == 0) return sign;
  const uint64_t significand = static_cast<uint64_t>(std::ldexp(magnitude, -last_place));
  if (magnitude < format.min_normal()) return sign | significand;
  const uint64_t field = static_cast<uint64_t>(last_place + fraction + bias(format));
  return sign | field << fraction | (significand & low_bits(fraction));
}

double decode(uint64_t bits, const Format& format) {
  const int fraction = fraction_bits(format);
  const uint64_t code = bits & low_bits(format.exponent_bits + fraction);
  const bool negative = (bits >> (format.exponent_bits + fraction) & 1) != 0;
  const uint64_t field = code >> fraction, significand = code & low_bits(fraction);
  // If -0 exists, NaN has either sign.
  const uint64_t nan_mask = low_bits(format.storage_bits() - (format.has_negative_zero ? 1 : 0));
  double magnitude;
  if (format.has_infinity && field == low_bits(format.exponent_bits)) {
    magnitude = significand == 0 ? std::numeric_limits<double>::infinity()
                                 : std::numeric_limits<double>::quiet_NaN();
  } else if (!format.has_infinity && format.has_nan && (bits & nan_mask) == nan_code(format)) {
    magnitude = std::numeric_limits<double>::quiet_NaN();
  } else if (field == 0) {
    magnitude = format.has_subnormals()
                    ? std::ldexp(static_cast<double>(significand), format.emin - fraction)
                    : 0.0;
  } else {
    const uint64_t full = significand | uint64_t{1} << fraction;
    magnitude =
        std::ldexp(static_cast<double>(full), static_cast<int>(field) - bias(format) - fraction);
  }
  return negative ? -magnitude : magnitude;
}

}  // namespace lockstep
