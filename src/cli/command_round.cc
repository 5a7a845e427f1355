// lockstep round: what one number becomes in one format, bit by bit, under every rounding; or what
// a few numbers become as one block of a block format.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <memory>

#include "emulation/block_format.h"
#include "emulation/format.h"
#include "emulation/rounding.h"
#include "src/cli/arguments.h"
#include "src/cli/command.h"
#include "src/cli/number_text.h"
#include "src/cli/round_block.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

struct RoundArgs {
  std::vector<std::string> values;
  std::string format, rounding = "nearest_even", tensor_scale;
  uint32_t random = 0;
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The bits with what each field says, a line for each:
//   0 01011 1001100110 = 0x2e66
//   | |     fraction: 614/1024
//   | exponent: 11 - 15 = -4
//   sign: +
void print_bits(double y, const Format& format) {
  const std::string bits = field_bits(y, format);
  if (bits == "none") {
    print_field("bits", fmt::format("none: {} has no such value", format.name));
    return;
  }
  print_field("bits", bits + " = " + hex_bits(y, format));
  const int fraction_bits = format.precision - 1;
  const uint64_t code = encode(y, format);
  const uint64_t fraction = code & ((uint64_t{1} << fraction_bits) - 1);
  const int field = static_cast<int>(code >> fraction_bits & ((1u << format.exponent_bits) - 1));
  const bool is_special = !std::isfinite(y);
  const int exponent_at = 2, fraction_at = exponent_at + format.exponent_bits + 1;
  if (fraction_bits > 0) {
    print_field("", fmt::format("| {:<{}}fraction: {}/{}", "|", fraction_at - exponent_at, fraction,
                                uint64_t{1} << fraction_bits));
  }
  std::string meaning;
  if (is_special) {
    meaning = fmt::format("{}, {}", field,
                          std::isnan(y) ? "with this fraction a NaN" : "with fraction 0 infinity");
  } else if (field == 0) {
    meaning = fmt::format("{}, the leading bit is 0", format.emin);
  } else {
    meaning = fmt::format("{} - {} = {}, the leading bit is 1", field, 1 - format.emin,
                          field - (1 - format.emin));
  }
  print_field("", fmt::format("| exponent: {}", meaning));
  print_field("", fmt::format("sign: {}", std::signbit(y) ? '-' : '+'));
}

// The next value of the format beyond y in the direction of `towards`, or that there is none.
std::string neighbour_text(double y, const Format& format, double towards) {
  const Rounding rounding = towards > y ? Rounding::kUp : Rounding::kDown;
  double next = round_to_format(std::nextafter(y, towards), format, rounding);
  // Flushed: what lies beyond zero is a normal number.
  if (y == 0 && next == 0) next = std::copysign(format.min_normal(), towards);
  if (next == y) return "none: saturated";
  if (!std::isfinite(next)) return fmt::format("{}: overflow", next);
  return value_text(next);
}

std::string error_text(double x, double y, const Format& format) {
  if (!std::isfinite(x) || !std::isfinite(y)) return "-";
  const double error = y - x;
  if (error == 0) return "0 (exact)";
  std::string text =
      fmt::format("{:.6g} = {} (1 ulp = {:.6g})", error, ulps_text(x, y, format), ulp(x, format));
  if (x != 0) text += fmt::format(", relative {:.3g}", error / x);
  return text;
}

// What the policies and limits of the format did.
std::string remarks(double x, double y, const Format& format) {
  const double least = format.min_subnormal(), magnitude = std::fabs(x);
  if (std::isnan(x)) {
    return format.has_nan ? ""
                          : fmt::format("{} has no NaN: it stays one and is counted", format.name);
  }
  if (std::isinf(x)) {
    if (std::isinf(y)) return "";
    return fmt::format("infinity: {} makes it {}", format.name, y);
  }
  if (!std::isfinite(y)) {
    return fmt::format("overflow: |x| is beyond the largest finite number, {}", format.max_finite);
  }
  if (magnitude > format.max_finite) {
    return fmt::format("beyond the largest finite number, {}: {} to it", format.max_finite,
                       format.overflow == OverflowPolicy::kSaturate ? "saturated" : "rounded");
  }
  if (x != 0 && y == 0) {
    if (magnitude < format.min_normal() && !format.has_subnormals()) {
      return fmt::format("flushed to zero: {} keeps no numbers below 2^{}", format.name,
                         format.emin);
    }
    return fmt::format("underflow to zero: the smallest nonzero magnitude is {:.6g}", least);
  }
  if (y != 0 && std::fabs(y) < format.min_normal()) {
    const int kept = std::ilogb(y) - std::ilogb(least) + 1;
    return fmt::format("subnormal: {} of {} significand bits are left", kept, format.precision);
  }
  return "";
}

// How many of the 2^32 random fractions round x away from zero: stochastic rounding is monotone in
// them, so that halving finds where it changes.
uint64_t fractions_away(double x, const Format& format) {
  const auto is_away = [&](uint64_t random) {
    const double y =
        round_to_format(x, format, Rounding::kStochastic, static_cast<uint32_t>(random));
    const double toward = round_to_format(x, format, Rounding::kTowardZero);
    return !(y == toward);
  };
  uint64_t away = 0;
  for (uint64_t step = uint64_t{1} << 31; step > 0; step /= 2) {
    if (is_away(away + step - 1)) away += step;
  }
  return away == UINT32_MAX && is_away(UINT32_MAX) ? uint64_t{1} << 32 : away;
}

// What every rounding gives, the chosen one marked.
void print_roundings(double x, const Format& format, Rounding chosen) {
  const auto row = [&](std::string_view name, double y, bool marked, const std::string& tail) {
    std::string text =
        fmt::format("{:<14} {:>10}  {:<26} {:>14}{}", name, hex_bits(y, format),
                    std::isfinite(y) ? fmt::format("{:.17g}", y) : fmt::format("{}", y),
                    ulps_text(x, y, format), tail);
    text.erase(text.find_last_not_of(' ') + 1);
    fmt::print("  {:<{}}{}\n", marked ? "            >" : "", kFieldIndent - 2, text);
  };
  fmt::print("\n  roundings\n");
  for (const RoundingInfo& info : roundings()) {
    if (info.rounding == Rounding::kStochastic) continue;
    row(info.name, round_to_format(x, format, info.rounding), info.rounding == chosen, "");
  }
  const uint64_t away = fractions_away(x, format);
  const double toward_value = round_to_format(x, format, Rounding::kStochastic, UINT32_MAX);
  const double away_value = round_to_format(x, format, Rounding::kStochastic, 0);
  const double percent = 100 * std::ldexp(static_cast<double>(away), -32);
  const bool marked = chosen == Rounding::kStochastic;
  const auto chance = [](double p) { return fmt::format("  {:6.3f} %", p); };
  if (percent < 100) row("stochastic", toward_value, marked, chance(100 - percent));
  if (percent == 100) row("stochastic", away_value, marked, chance(percent));
  if (percent > 0 && percent < 100) row("", away_value, false, chance(percent));
  fmt::print("\n");
}

void print_number(const std::string& word, double x, const Format& format, const RoundArgs& args,
                  Rounding rounding) {
  const double y = round_to_format(x, format, rounding, args.random);
  fmt::print("{} in {}, {}\n", word, format.name, to_string(rounding));
  print_field("read as fp64", value_text(x));
  print_bits(y, format);
  print_field("value", value_text(y));
  print_field("error", error_text(x, y, format));
  if (std::isfinite(y)) {
    print_field("next below", neighbour_text(y, format, -kInfinity));
    print_field("next above", neighbour_text(y, format, kInfinity));
  }
  print_field("remark", remarks(x, y, format));
  // A value of the format, or NaN: every rounding leaves it as it is.
  if (y != x && !std::isnan(x)) print_roundings(x, format, rounding);
  print_field("format", format.help);
  print_field("hint", format_hint(args.format));
}

void round_as_block(const RoundArgs& args, Rounding rounding, ProblemList& problems) {
  const BlockFormat& format = find_block_format(args.format);
  BlockQuestion question{
      .values = {}, .format = &format, .rounding = rounding, .random = args.random};
  if (args.values.size() > static_cast<size_t>(format.block_size)) {
    problems.add(fmt::format("{} values: a block of {} holds at most {}", args.values.size(),
                             format.name, format.block_size),
                 "one block per call");
  }
  for (const std::string& word : args.values) {
    collect_problems(problems, [&] {
      const double value = parse_number("value", word);
      if (std::isfinite(value) && std::isinf(static_cast<float>(value))) {
        throw InputError(fmt::format("value '{}': beyond FP32's largest, 3.4e38", word),
                         "blocks are made of FP32 numbers");
      }
      question.values.push_back(static_cast<float>(value));
    });
  }
  if (!args.tensor_scale.empty()) {
    const bool has_one = format.scale == ScaleFormat::kE4m3;
    if (!has_one)
      problems.add(fmt::format("--tensor-scale: {} has none", format.name), "nvfp4 has");
    question.tensor_scale = static_cast<float>(std::strtod(args.tensor_scale.c_str(), nullptr));
    if (!(question.tensor_scale > 0) || std::isinf(question.tensor_scale)) {
      problems.add(fmt::format("--tensor-scale {}: a number > 0 and finite in FP32 required",
                               args.tensor_scale));
    }
  }
  problems.throw_if_any();
  print_block(question);
}

int run_round(const RoundArgs& args, ProblemList& problems) {
  const Format* format = nullptr;
  Rounding rounding = Rounding::kNearestEven;
  // What starts like a block format is one, or a misspelt one.
  const bool as_block = names_block_format(args.format) || args.format.starts_with("mx") ||
                        args.format.starts_with("nv");
  collect_problems(problems, [&] { rounding = find_rounding(args.rounding); });
  try {
    if (as_block) {
      find_block_format(args.format);
    } else {
      format = &find_format(args.format);
    }
  } catch (const InputError& error) {
    problems.add(error.what());  // with the format's name before the widths it has wrong
  }
  if (as_block && problems.empty()) {
    round_as_block(args, rounding, problems);
    return kExitFine;
  }
  std::vector<double> values;
  for (const std::string& word : args.values) {
    collect_problems(problems, [&] { values.push_back(parse_number("value", word)); });
  }
  if (!args.tensor_scale.empty()) {
    problems.add("--tensor-scale: only block formats with a tensor scale have it", "nvfp4 has");
  }
  problems.throw_if_any();
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) fmt::print("\n");
    print_number(args.values[i], values[i], *format, args, rounding);
  }
  return kExitFine;
}

}  // namespace

std::function<int()> declare_round(CLI::App& app) {
  auto args = std::make_shared<RoundArgs>();
  app.add_option("VALUE", args->values,
                 "decimal, hexadecimal float, inf, nan (-inf: after --); several:\n"
                 "each, or one block of a block format")
      ->type_name("")
      ->required();
  app.add_option("--format", args->format, "see `lockstep list formats` and `lockstep list blocks`")
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
  checks.number(app.add_option("--tensor-scale", args->tensor_scale,
                               "the FP32 scale of nvfp4's tensor; without it: from the values")
                    ->type_name("X"));
  return [args, checks] { return run_round(*args, checks.problems()); };
}

}  // namespace lockstep
