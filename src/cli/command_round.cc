// lockstep round: what one number becomes in one format, bit by bit.
#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>

#include "emulation/format.h"
#include "emulation/rounding.h"
#include "src/cli/arguments.h"
#include "src/cli/command.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

struct RoundArgs {
  std::string value, format, rounding = "nearest_even";
  uint32_t random = 0;
};

double parse_value(const std::string& text) {
  errno = 0;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') {
    throw InputError(fmt::format("value '{}': not a number", text),
                     "a decimal (0.1, -3e-8), a hexadecimal float (0x1.8p-3), inf or nan");
  }
  if (errno == ERANGE && std::isinf(value)) {
    throw InputError(fmt::format("value '{}': beyond FP64's largest, 1.8e308", text));
  }
  return value;
}

// The exact decimal expansion; long ones are cut, with their length.
std::string exact_decimal(double x) {
  constexpr size_t kShown = 60;
  constexpr int kEveryDigit = 767;  // significant digits of the longest finite double
  char text[1200];
  std::snprintf(text, sizeof text, "%.*g", kEveryDigit, x);
  const std::string all(text);
  if (all.size() <= kShown) return all;
  return fmt::format("{:.17g} (rounded; exact: {} characters)", x, all.size());
}

std::string value_text(double x) {
  if (!std::isfinite(x)) return fmt::format("{}", x);
  return fmt::format("{} = {:a}", exact_decimal(x), x);
}

std::string bits_text(double y, const Format& format) {
  if (!is_representable(y, format)) return fmt::format("none: {} has no such value", format.name);
  const uint64_t bits = encode(y, format);
  const int fraction = format.precision - 1, total = format.storage_bits();
  std::string text;
  for (int i = total - 1; i >= 0; --i) {
    text += ((bits >> i) & 1) != 0 ? '1' : '0';
    if (i == total - 1 || i == fraction) text += ' ';
  }
  constexpr int kBitsPerHexDigit = 4;
  return fmt::format("{}  (sign, {} exponent, {} fraction; 0x{:0{}x})", text, format.exponent_bits,
                     fraction, bits, (total + kBitsPerHexDigit - 1) / kBitsPerHexDigit);
}

// The next value of the format beyond y in the direction of `towards`.
double neighbour(double y, const Format& format, double towards) {
  const Rounding rounding = towards > y ? Rounding::kUp : Rounding::kDown;
  return round_to_format(std::nextafter(y, towards), format, rounding);
}

std::string error_text(double x, double y, const Format& format) {
  if (!std::isfinite(x) || !std::isfinite(y)) return "-";
  const double error = y - x;  // exact where y is near x (Sterbenz), else correctly rounded
  if (error == 0) return "0 (exact)";
  const double unit = ulp(x, format);
  std::string text = fmt::format("{:.6g} = {:.4f} ulp (1 ulp = {:.6g})", error, error / unit, unit);
  if (x != 0) text += fmt::format(", relative {:.3g}", error / x);
  return text;
}

std::string remarks(double x, double y, const Format& format) {
  const double least = format.min_subnormal();
  std::string text;
  if (std::isnan(x)) {
    if (!format.has_nan)
      text = fmt::format("{} has no NaN: it stays one and is counted", format.name);
  } else if (std::isinf(x)) {
    if (!std::isinf(y)) text = fmt::format("{} has no infinity", format.name);
  } else if (!std::isfinite(y)) {
    text = fmt::format("overflow: |x| is beyond the largest finite number, {}", format.max_finite);
  } else if (std::fabs(x) > format.max_finite) {
    text = fmt::format("beyond the largest finite number, {}: set to it", format.max_finite);
  } else if (x != 0 && y == 0) {
    text = fmt::format("underflow to zero: the smallest nonzero magnitude is {:.6g}", least);
  } else if (y != 0 && std::fabs(y) < format.min_normal()) {
    const int kept = std::ilogb(y) - std::ilogb(least) + 1;
    text = fmt::format("subnormal: {} of {} significand bits are left", kept, format.precision);
  }
  return text;
}

void line(std::string_view name, const std::string& text) {
  if (!text.empty()) fmt::print("  {:<12}{}\n", name, text);
}

int run_round(const RoundArgs& args, ProblemList& problems) {
  double x = 0;
  const Format* format = nullptr;
  Rounding rounding = Rounding::kNearestEven;
  collect_problems(problems, [&] { x = parse_value(args.value); });
  try {
    format = &find_format(args.format);
  } catch (const InputError& error) {
    problems.add(error.what());  // with the format's name before the widths it has wrong
  }
  collect_problems(problems, [&] { rounding = find_rounding(args.rounding); });
  problems.throw_if_any();

  const double y = round_to_format(x, *format, rounding, args.random);
  fmt::print("{} in {}, {}\n", args.value, format->name, to_string(rounding));
  line("read as", value_text(x) + " (fp64)");
  line("bits", bits_text(y, *format));
  line("value", value_text(y));
  line("error", error_text(x, y, *format));
  if (std::isfinite(y)) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    line("next below", value_text(neighbour(y, *format, -kInfinity)));
    line("next above", value_text(neighbour(y, *format, kInfinity)));
  }
  line("remark", remarks(x, y, *format));
  line("format", format->help);
  line("hint", format_hint(args.format));
  return kExitFine;
}

}  // namespace

std::function<int()> declare_round(CLI::App& app) {
  auto args = std::make_shared<RoundArgs>();
  app.add_option("VALUE", args->value, "a decimal, a hexadecimal float, inf or nan")
      ->type_name("")
      ->required();
  app.add_option("--format", args->format,
                 "a named format or e<E>m<M>: see `lockstep list formats`")
      ->type_name("F")
      ->required();
  app.add_option("--rounding", args->rounding, "see `lockstep list roundings`")
      ->type_name("R")
      ->capture_default_str();
  const ArgumentChecks checks("round");
  checks.whole(app.add_option("--random", args->random, "the 32 random bits of stochastic rounding")
                   ->type_name("BITS")
                   ->capture_default_str(),
               0, UINT32_MAX);
  return [args, checks] { return run_round(*args, checks.problems()); };
}

}  // namespace lockstep
