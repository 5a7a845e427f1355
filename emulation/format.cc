// THE table of formats, and what follows from a row: limits, spacing, neighbours, storage bits.
// A new format is a new row here and nothing else.
#include "emulation/format.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "emulation/power_of_two.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

constexpr auto kInfinity = OverflowPolicy::kInfinity;
constexpr auto kNan = OverflowPolicy::kNan;

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
       .has_subnormals = true,
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
       .has_subnormals = true,
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
       .has_subnormals = true,
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
       .has_subnormals = true,
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
       .has_subnormals = true,
       .overflow = kInfinity,
       .max_finite = 0x1.fep127,
       .help = "16 bits, max (2 - 2^-7) 2^127 = 3.4e38, normal from 2^-126, least 2^-133",
       .source = "Intel, \"BFLOAT16 - Hardware Numerics Definition\", 2018, §1"},
      {.name = "fp8_e4m3",
       .aliases = {"float8_e4m3fn", "float8_e4m3", "e4m3fn"},
       .precision = 4,
       .emin = -6,
       .emax = 8,
       .exponent_bits = 4,
       .has_infinity = false,
       .has_nan = true,
       .has_subnormals = true,
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
       .has_subnormals = true,
       .overflow = kInfinity,
       .max_finite = 57344.0,
       .help = "8 bits, IEEE rules, max 1.75 * 2^15 = 57344, normal from 2^-14, least 2^-16",
       .source = "OCP 8-bit Floating Point Specification (OFP8) 1.0, §5"},
  };
  return rows;
}

// Names are compared in lower case, with '-' for '_'.
std::string canonical_spelling(std::string_view name) {
  std::string out(name);
  for (char& c : out) c = c == '-' ? '_' : static_cast<char>(std::tolower((unsigned char)c));
  return out;
}

constexpr int kMinExponentBits = 2, kMaxExponentBits = 8;
constexpr int kMinFractionBits = 1, kMaxFractionBits = 23;

// "e4m3" -> {4, 3}, whatever the numbers; nothing when the text has another shape.
std::optional<std::pair<int, int>> parse_exmy(const std::string& name) {
  size_t at = 0;
  const auto number = [&](char letter) -> int {
    if (at >= name.size() || name[at] != letter) return -1;
    size_t digits = ++at;
    while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at]))) ++at;
    constexpr size_t kMaxDigits = 4;
    if (at == digits || at - digits > kMaxDigits) return -1;
    return std::stoi(name.substr(digits, at - digits));
  };
  const int exponent_bits = number('e');
  const int fraction_bits = exponent_bits < 0 ? -1 : number('m');
  if (fraction_bits < 0 || at != name.size()) return std::nullopt;
  return std::pair(exponent_bits, fraction_bits);
}

bool in_range(std::pair<int, int> widths) {
  return widths.first >= kMinExponentBits && widths.first <= kMaxExponentBits &&
         widths.second >= kMinFractionBits && widths.second <= kMaxFractionBits;
}

Format make_exmy(int exponent_bits, int fraction_bits) {
  Format f;
  f.name = "e" + std::to_string(exponent_bits) + "m" + std::to_string(fraction_bits);
  f.precision = fraction_bits + 1;
  f.emax = (1 << (exponent_bits - 1)) - 1;
  f.emin = 1 - f.emax;
  f.exponent_bits = exponent_bits;
  f.has_infinity = f.has_nan = f.has_subnormals = true;
  f.overflow = kInfinity;
  f.max_finite = std::ldexp(2.0 - f.machine_epsilon(), f.emax);
  f.help = std::to_string(f.storage_bits()) + " bits, IEEE rules, max (2 - 2^-" +
           std::to_string(fraction_bits) + ") 2^" + std::to_string(f.emax) + ", normal from 2^" +
           std::to_string(f.emin) + ", least 2^" + std::to_string(f.emin - fraction_bits);
  f.source = "IEEE 754-2019 §3.3 with these widths";
  return f;
}

// The exponent of the last place of x's binade.
int ulp_exponent(double x, const Format& f) {
  const int e = x == 0 ? f.emin - 1 : binade_of(x);
  if (e < f.emin && !f.has_subnormals) return f.emin;  // the only spacing left: 0 to min_normal
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
// With infinities the whole top exponent is special, and NaN is quiet: its first fraction bit set.
// Without, only the code of all ones is NaN.
uint64_t nan_code(const Format& f) {
  if (!f.has_infinity) return low_bits(f.exponent_bits + fraction_bits(f));
  return low_bits(f.exponent_bits + 1) << (fraction_bits(f) - 1);
}

}  // namespace

double Format::min_normal() const {
  return power_of_two(emin);
}
double Format::min_subnormal() const {
  return power_of_two(has_subnormals ? emin - precision + 1 : emin);
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

const Format& find_format(std::string_view name) {
  const std::string wanted = canonical_spelling(name);
  std::vector<std::string> known;
  for (const Format& row : table()) {
    if (row.name == wanted) return row;
    known.push_back(row.name);
    for (const std::string& alias : row.aliases) {
      if (alias == wanted) return row;
      known.push_back(alias);
    }
  }
  const auto widths = parse_exmy(wanted);
  if (!widths) {
    throw InputError("format '" + std::string(name) + "': unknown",
                     did_you_mean(wanted, known) + " (or e<E>m<M>, as in e6m9)");
  }
  const auto [e, m] = *widths;
  ProblemList problems("format '" + std::string(name) + "'");
  if (e < kMinExponentBits || e > kMaxExponentBits) {
    problems.add("E = " + std::to_string(e) + " exponent bits, must be 2 <= E <= 8");
  }
  if (m < kMinFractionBits || m > kMaxFractionBits) {
    problems.add("M = " + std::to_string(m) + " fraction bits, must be 1 <= M <= 23");
  }
  problems.throw_if_any();

  static std::mutex mutex;
  static std::map<std::pair<int, int>, std::unique_ptr<const Format>> made;
  const std::lock_guard lock(mutex);
  auto& slot = made[*widths];
  if (!slot) slot = std::make_unique<const Format>(make_exmy(e, m));
  return *slot;
}

std::string format_hint(std::string_view name) {
  const auto widths = parse_exmy(canonical_spelling(name));
  if (!widths || !in_range(*widths)) return "";
  // A named format with the same field widths but other special values is easily meant instead.
  const Format& format = find_format(name);
  for (const Format& row : table()) {
    if (row.exponent_bits != widths->first || row.precision != widths->second + 1) continue;
    if (row.max_finite == format.max_finite) return "";
    return "'" + format.name + "' follows IEEE rules (max " +
           std::to_string(static_cast<int64_t>(format.max_finite)) + "); it is not '" + row.name +
           "' (max " + std::to_string(static_cast<int64_t>(row.max_finite)) + ")";
  }
  return "";
}

double ulp(double x, const Format& format) {
  return power_of_two(ulp_exponent(x, format));
}

bool is_representable(double x, const Format& format) {
  if (std::isnan(x)) return format.has_nan;
  if (std::isinf(x)) return format.has_infinity;
  if (std::abs(x) > format.max_finite) return false;
  // Scaling by a power of two is exact here: the quotient is at most 2^p, or a fraction.
  const double steps = std::ldexp(x, -ulp_exponent(x, format));
  return steps == std::trunc(steps);
}

bool contains(const Format& wide, const Format& narrow) {
  if (narrow.has_nan && !wide.has_nan) return false;
  if (narrow.has_infinity && !wide.has_infinity) return false;
  if (narrow.max_finite > wide.max_finite || narrow.precision > wide.precision) return false;
  if (!wide.has_subnormals) return narrow.min_subnormal() >= wide.min_normal();
  return narrow.min_subnormal() >= wide.min_subnormal();
}

uint64_t encode(double x, const Format& format) {
  if (!is_representable(x, format)) {
    throw std::logic_error("encode: the value is not one of " + format.name);
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
  double magnitude;
  if (format.has_infinity && field == low_bits(format.exponent_bits)) {
    magnitude = significand == 0 ? std::numeric_limits<double>::infinity()
                                 : std::numeric_limits<double>::quiet_NaN();
  } else if (!format.has_infinity && format.has_nan && code == nan_code(format)) {
    magnitude = std::numeric_limits<double>::quiet_NaN();
  } else if (field == 0) {
    magnitude = format.has_subnormals
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
