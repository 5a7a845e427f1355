// strtod with the project's messages; exact digits where a double cannot hold them; numbers as
// text.
#include "src/cli/arguments/exact_number.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "reports/writers/text_writer.h"
#include "src/core/error.h"
#include "src/core/text.h"

namespace lockstep {

double parse_number(const std::string& name, const std::string& text) {
  errno = 0;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') {
    throw InputError(fmt::format("{} '{}': not a number", name, text),
                     "a decimal (0.1, -3e-8), a hexadecimal float (0x1.8p-3), inf or nan");
  }
  if (errno == ERANGE && std::isinf(value)) {
    throw InputError(fmt::format("{} '{}': beyond FP64's largest, 1.8e308", name, text));
  }
  return value;
}

namespace {

// Digits, point and exponent as written, without the sign: digits * base^exponent * 2^twos.
struct Written {
  Exact::Integer digits = 0;
  int base = 10;
  int64_t exponent = 0, twos = 0;
};

// Requires: text that strtod reads to its end, a finite number without its sign.
Written read_digits(std::string_view text) {
  constexpr int64_t kBitsPerHexDigit = 4;
  Written w;
  const bool is_hex = text.starts_with("0x") || text.starts_with("0X");
  if (is_hex) {
    w.base = 16;
    text.remove_prefix(2);
  }
  const size_t end = text.find_first_of(is_hex ? "pP" : "eE");
  bool behind_point = false;
  for (const char c : text.substr(0, end)) {
    if (c == '.') {
      behind_point = true;
      continue;
    }
    constexpr int kTen = 10;
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + kTen;
    w.digits = w.digits * w.base + digit;
    if (behind_point) --w.exponent;
  }
  if (end != text.npos) {
    constexpr long long kMost = 1'000'000'000;  // beyond it every number is tiny
    const long long power = std::clamp(
        std::strtoll(std::string(text.substr(end + 1)).c_str(), nullptr, 10), -kMost, kMost);
    (is_hex ? w.twos : w.exponent) += power;
  }
  if (is_hex) {
    w.twos += w.exponent * kBitsPerHexDigit;
    w.exponent = 0;
  }
  return w;
}

// The number itself, or one that no format with fewer bits than kBits can distinguish from it: its
// last bit is set if any bit after it is. Requires: within double's range or tiny.
Exact exact_value(const Written& w) {
  constexpr int kBits = 192, kTiny = -3000;
  using boost::multiprecision::msb;
  using boost::multiprecision::pow;
  const auto magnitude = static_cast<int64_t>(msb(w.digits));
  // Below 2^-1400 every format rounds the same way; powers of such exponents would not fit.
  constexpr int64_t kNothing = 1400, kBitsOfTen = 3;
  if (magnitude + w.exponent * kBitsOfTen + w.twos < -kNothing) return {1, kTiny};
  if (w.exponent >= 0) {
    const Exact::Integer whole =
        w.digits * pow(Exact::Integer(10), static_cast<unsigned>(w.exponent));
    return {whole, static_cast<int>(w.twos)};
  }
  const Exact::Integer divisor = pow(Exact::Integer(10), static_cast<unsigned>(-w.exponent));
  const int64_t shift =
      std::max<int64_t>(0, kBits + static_cast<int64_t>(msb(divisor)) - magnitude);
  const Exact::Integer scaled = w.digits << static_cast<unsigned>(shift);
  Exact::Integer quotient = scaled / divisor;
  const bool has_rest = quotient * divisor != scaled;
  quotient = quotient * 2 + (has_rest ? 1 : 0);
  return {quotient, static_cast<int>(w.twos - shift - 1)};
}

}  // namespace

ParsedNumber::ParsedNumber(double x) : nearest(x), odd(x) {
  if (std::isfinite(x)) exact = Exact(x);
}

ParsedNumber::ParsedNumber(double nearest_double, Exact value)
    : nearest(nearest_double),
      is_double(Exact(nearest_double) == value),
      exact(std::move(value)),
      odd(is_double ? nearest : oracle_round(exact, find_format("fp64"), Rounding::kOdd)) {}

ParsedNumber parse_exact_number(const std::string& name, const std::string& text) {
  const double nearest = parse_number(name, text);
  if (!std::isfinite(nearest)) return ParsedNumber(nearest);
  std::string_view digits = text;
  digits.remove_prefix(digits.find_first_not_of(" \t\n\v\f\r"));
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  const Written written = read_digits(digits);
  if (written.digits == 0) return ParsedNumber(nearest);
  const Exact magnitude = exact_value(written);
  return {nearest, negative ? -magnitude : magnitude};
}

bool is_storage_word(const std::string& text) {
  return (text.starts_with("0x") || text.starts_with("0X")) &&
         text.find_first_of(".pP") == text.npos;
}

double round_number(const ParsedNumber& x, const Format& format, Rounding rounding,
                    uint32_t random) {
  if (x.is_double) return round_to_format(x.nearest, format, rounding, random);
  if (!format.is_fp64()) return round_to_format(x.odd, format, rounding, random);
  return rounding == Rounding::kStochastic ? x.nearest : oracle_round(x.exact, format, rounding);
}

std::string decimal_text(double x) {
  constexpr size_t kShown = 60;
  constexpr int kEveryDigit = 767;  // significant digits of the longest finite double
  char text[1200];
  std::snprintf(text, sizeof text, "%.*g", kEveryDigit, x);
  const std::string all(text);
  return all.size() <= kShown ? all : fmt::format("{:.17g} (17 digits)", x);
}

std::string value_text(double x) {
  if (!std::isfinite(x)) return fmt::format("{}", x);
  return fmt::format("{} = {:a}", decimal_text(x), x);
}

std::string field_bits(double y, const Format& format) {
  if (!is_representable(y, format)) return "none";
  const uint64_t bits = encode(y, format);
  const int fraction = format.precision - 1, total = format.storage_bits();
  std::string text;
  for (int i = total - 1; i >= 0; --i) {
    text += ((bits >> i) & 1) != 0 ? '1' : '0';
    if (i == total - 1 || (i == fraction && i > 0)) text += ' ';
  }
  return text;
}

std::string hex_bits(double y, const Format& format) {
  if (!is_representable(y, format)) return "none";
  constexpr int kBitsPerHexDigit = 4;
  const int digits = (format.storage_bits() + kBitsPerHexDigit - 1) / kBitsPerHexDigit;
  return fmt::format("0x{:0{}x}", encode(y, format), digits);
}

std::string bits_by_field(double x, const Format& format) {
  if (!is_representable(x, format)) return fmt::format("none: {} has no such value", format.name);
  return fmt::format("{}  (sign, {} exponent, {} fraction; {})", field_bits(x, format),
                     format.exponent_bits, format.precision - 1, hex_bits(x, format));
}

std::string ulps_text(double x, double y, const Format& format, double unit) {
  if (!std::isfinite(x) || !std::isfinite(y)) return "-";
  // Exact where y is near x (Sterbenz), else correctly rounded.
  return ulps_text_of(y - x, x, format, unit);
}

std::string ulps_text_of(double error, double x, const Format& format, double unit) {
  if (error == 0) return "exact";
  const double ulps = error / (ulp(x / unit, format) * unit);
  constexpr double kManyUlps = 1e4;
  return std::abs(ulps) < kManyUlps ? fmt::format("{:+.4f} ulp", ulps)
                                    : fmt::format("{:+.3e} ulp", ulps);
}

void print_field(std::string_view name, const std::string& text) {
  constexpr std::string_view kMargin = "  ";
  if (text.empty()) return;
  if (display_width(text) <= kTextWidth - kFieldIndent) {  // unchanged: it may be a drawing
    fmt::print("{}{:<{}}{}\n", kMargin, name, kFieldIndent - kMargin.size(), text);
    return;
  }
  std::string_view label = name;
  for (const std::string& line : split(wrap(text, kTextWidth - kFieldIndent), '\n')) {
    if (line.empty()) continue;  // after the last newline
    fmt::print("{}{:<{}}{}\n", kMargin, label, kFieldIndent - kMargin.size(), line);
    label = "";
  }
}

}  // namespace lockstep
