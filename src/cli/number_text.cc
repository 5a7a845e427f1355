// strtod with the project's messages; numbers as text.
#include "src/cli/number_text.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "reports/text_writer.h"
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
  const double error = y - x;  // exact where y is near x (Sterbenz), else correctly rounded
  if (error == 0) return "exact";
  const double ulps = error / (ulp(x / unit, format) * unit);
  constexpr double kManyUlps = 1e4;
  return std::abs(ulps) < kManyUlps ? fmt::format("{:+.4f} ulp", ulps)
                                    : fmt::format("{:+.3e} ulp", ulps);
}

void print_field(std::string_view name, const std::string& text) {
  constexpr std::string_view kMargin = "  ";
  if (text.empty()) return;
  if (display_width(text) <= kTextWidth - kFieldIndent) {  // as it stands: it may be a drawing
    fmt::print("{}{:<{}}{}\n", kMargin, name, kFieldIndent - kMargin.size(), text);
    return;
  }
  std::string_view label = name;
  for (const std::string& line : split(wrap(text, kTextWidth - kFieldIndent), '\n')) {
    if (line.empty()) continue;  // behind the last line's end
    fmt::print("{}{:<{}}{}\n", kMargin, label, kFieldIndent - kMargin.size(), line);
    label = "";
  }
}

}  // namespace lockstep
