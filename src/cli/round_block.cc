// A block as text: the arithmetic of emulation/format/block_format.h, step by step.
#include "src/cli/round_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/cli/arguments/exact_number.h"

namespace lockstep {
namespace {

const ScaleRuleInfo& rule_info(ScaleRule rule) {
  const auto rules = scale_rules();
  return *std::ranges::find_if(rules, [&](const auto& row) { return row.rule == rule; });
}

std::string power_text(double x) {
  return fmt::format("2^{}", std::ilogb(x));
}

// 0x7f as "01111111 = 0x7f".
std::string code_text(uint8_t code) {
  return fmt::format("{:08b} = 0x{:02x}", code, code);
}

std::string e8m0_text(uint8_t code, float amax, const BlockFormat& format) {
  if (std::isnan(amax))
    return code_text(code) + ": NaN, because the block holds a NaN or an infinity";
  const double value = scale_value(code, format);
  std::string text = fmt::format("{}: 2^({} - 127) = {}", code_text(code), code, power_text(value));
  if (amax == 0) return text + ", the smallest: the block is all zeros";
  if (code == 0 && amax < value * format.element->max_finite / 2) {
    return text + ", the smallest possible";
  }
  return text;
}

std::string note(float x, double element, float value, const BlockFormat& format, float scale) {
  if (std::isnan(scale)) return "NaN block";
  if (!std::isfinite(element)) return "overflow";
  if (std::isinf(value)) return "beyond FP32";
  if (x != 0 && element == 0) return "underflow";
  const double largest = format.element->max_finite;
  if (std::abs(element) == largest && std::abs(x) > largest * static_cast<double>(scale)) {
    return "saturated";
  }
  if (element != 0 && std::abs(element) < format.element->min_normal()) return "subnormal";
  return "";
}

void print_scale(float amax, uint8_t code, float tensor_scale, bool tensor_scale_given,
                 const BlockFormat& format) {
  const Format& element = *format.element;
  if (format.scale == ScaleFormat::kE8m0) {
    if (amax > 0) {
      print_field("amax", fmt::format("{} = {:.7g} * {}", amax, std::ldexp(amax, -std::ilogb(amax)),
                                      power_text(amax)));
    } else {
      print_field("amax", fmt::format("{}", amax));
    }
    print_field("scale", e8m0_text(code, amax, format));
    return;
  }
  print_field("amax", fmt::format("{}", amax));
  print_field("tensor scale",
              tensor_scale_given
                  ? fmt::format("{:.9g}", tensor_scale)
                  : fmt::format("amax / (448 * {}) = {:.9g}, with these values as the tensor",
                                element.max_finite, tensor_scale));
  const double block = scale_value(code, format);
  if (std::isnan(amax)) {
    print_field("block scale",
                code_text(code) + ": NaN, because the block holds a NaN or an infinity");
  } else {
    print_field("block scale", fmt::format("{}: e4m3(amax / {} / tensor scale) = {}",
                                           code_text(code), element.max_finite, block));
  }
  print_field("scale", fmt::format("block scale * tensor scale = {:.9g}",
                                   block_scale(code, tensor_scale, format)));
}

}  // namespace

void print_block(const BlockQuestion& question) {
  const BlockFormat& format = *question.format;
  const Format& element = *format.element;
  float amax = 0, finite_amax = 0;
  for (const float x : question.values) {
    if (std::isfinite(x)) finite_amax = std::max(finite_amax, std::abs(x));
    amax = std::isfinite(x) ? std::max(amax, std::abs(x)) : std::numeric_limits<float>::quiet_NaN();
    if (std::isnan(amax)) break;
  }
  const bool given = question.tensor_scale > 0;
  const float tensor_scale = given ? question.tensor_scale : tensor_scale_of(finite_amax, format);
  const uint8_t code = scale_code(amax, tensor_scale, format);
  const float scale = block_scale(code, tensor_scale, format);

  const size_t count = question.values.size();
  fmt::print("{} value{} as one block of {}, {}\n", count, count == 1 ? "" : "s", format.name,
             to_string(question.rounding));
  print_scale(amax, code, tensor_scale, given, format);
  fmt::print("\n  {:>14}  {:<{}}  {:>10}  {:>16}  {:>12}\n", "x", "element",
             element.storage_bits() + 2, "", "value", "error");
  for (const float x : question.values) {
    const double q = block_element(x, scale, format, question.rounding, question.random);
    const float y = block_value(q, scale);
    const double unit = std::isnan(scale) || scale == 0 ? 1 : static_cast<double>(scale);
    std::string line = fmt::format("  {:>14}  {:<{}}  {:>10}  {:>16}  {:>12}  {}", x,
                                   field_bits(q, element), element.storage_bits() + 2, q, y,
                                   ulps_text(x, y, element, unit), note(x, q, y, format, scale));
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  }
  fmt::print("\n");
  print_field("format", fmt::format("{:.4g} bits per element with its share of the scale: {}",
                                    format.bits_per_element(), format.help));
  if (format.scale == ScaleFormat::kE8m0) {
    const ScaleRuleInfo& rule = rule_info(format.rule);
    print_field("scale rule", fmt::format("{}: {} (emax {}, max_finite {})", rule.name, rule.help,
                                          element.emax, element.max_finite));
  }
}

}  // namespace lockstep
