// How are numbers read from a command line, and shown to a person?
// Decimals that are exact where they fit a line, bits by field, errors in ulps. Knows no command.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "emulation/format.h"

namespace lockstep {

// A decimal, a hexadecimal float (0x1.8p-3), inf or nan. `name` is what the message calls it.
// Throws: InputError.
double parse_number(const std::string& name, const std::string& text);

// Every digit, or "17 of them (17 digits)" where that is too long for a line.
std::string decimal_text(double x);
// decimal_text and the hexadecimal float.
std::string value_text(double x);

// "0 01011 1001100110": sign, exponent field, fraction; "none" where the format has no such value.
std::string field_bits(double y, const Format& format);
// "0x2e66" with the digits of the storage width, or "none".
std::string hex_bits(double y, const Format& format);
// "0 01111 1000000000  (sign, 5 exponent, 10 fraction; 0x3e00)", or that there is no such value.
std::string bits_by_field(double x, const Format& format);

// "-0.4000 ulp", ulps of `format` at x; "exact"; "-" where either is not finite. `unit` scales the
// ulp: the scale of x's block, or 1.
std::string ulps_text(double x, double y, const Format& format, double unit = 1);

// "  name          text", wrapped under itself; nothing when `text` is empty.
void print_field(std::string_view name, const std::string& text);
inline constexpr int kFieldIndent = 16;  // columns before the text

}  // namespace lockstep
