// Reads numbers from a command line, and formats them for people.
// Decimals are exact where they fit on a line; bits go by field, errors in ulps. Knows no command.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "emulation/format/format.h"
#include "emulation/format/oracle.h"

namespace lockstep {

// A decimal, a hexadecimal float (0x1.8p-3), inf or nan. `name`: its name in messages.
// Throws: InputError.
double parse_number(const std::string& name, const std::string& text);

// A number exactly as it was written, so that it is rounded once.
struct ParsedNumber {
  double nearest = 0;     // the nearest double, as a program would read it
  bool is_double = true;  // nearest is the number itself; true for infinities, NaN and zeros
  Exact exact;            // of finite numbers
  // The number rounded to odd: rounding it to a format of at most 51 bits gives what the number
  // gives. Source: Boldo & Melquiond, IEEE TC 57(4), 2008.
  double odd = 0;

  explicit ParsedNumber(double x);
  ParsedNumber(double nearest_double, Exact exact_value);
};
// As parse_number. Throws: InputError.
ParsedNumber parse_exact_number(const std::string& name, const std::string& text);
// True for hexadecimal digits without a point or an exponent: "0x3c00".
bool is_storage_word(const std::string& text);

// The number rounded once. Stochastic rounding to FP64 returns the nearest double.
double round_number(const ParsedNumber& x, const Format& format, Rounding rounding,
                    uint32_t random = 0);

// Every digit; where that is too long for a line, 17 digits and a note that says so.
std::string decimal_text(double x);
// decimal_text and the hexadecimal float.
std::string value_text(double x);

// "0 01011 1001100110": sign, exponent field, fraction; "none" where the format has no such value.
std::string field_bits(double y, const Format& format);
// "0x2e66" with the digits of the storage width, or "none".
std::string hex_bits(double y, const Format& format);
// "0 01111 1000000000  (sign, 5 exponent, 10 fraction; 0x3e00)", or a note that there is no such
// value.
std::string bits_by_field(double x, const Format& format);

// "-0.4000 ulp", ulps of `format` at x; "exact"; "-" where either is not finite. `unit` scales the
// ulp: the scale of x's block, or 1.
std::string ulps_text(double x, double y, const Format& format, double unit = 1);
// The same for an error that was computed exactly.
std::string ulps_text_of(double error, double x, const Format& format, double unit = 1);

// "  name          text", wrapped under itself; nothing when `text` is empty.
void print_field(std::string_view name, const std::string& text);
inline constexpr int kFieldIndent = 16;  // columns before the text

}  // namespace lockstep
