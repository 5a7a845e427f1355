// lockstep round: shows a number in a format, bit by bit, under every rounding; or a few numbers as
// one block of a block format.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <memory>

#include "emulation/accumulator/dot_vectors.h"
#include "emulation/format/block_format.h"
#include "emulation/format/format.h"
#include "emulation/format/rounding.h"
#include "src/cli/arguments/arguments.h"
#include "src/cli/arguments/exact_number.h"
#include "src/cli/command.h"
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

// A number on the command line, and how it was written.
struct RoundedNumber {
  std::string word;
  ParsedNumber number;
  bool is_storage_word = false;
};

// What the code of an infinity or a NaN holds in addition to its exponent field.
std::string special_text(double y, const Format& format) {
  if (std::isinf(y)) return "with fraction 0 infinity";
  return format.has_negative_zero ? "with this fraction a NaN" : "this is the code of -0: NaN";
}

// The bits, and a line that explains each field:
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
    meaning = fmt::format("{}, {}", field, special_text(y, format));
  } else if (field == 0) {
    meaning = fmt::format("{}, the leading bit is 0", format.emin);
  } else {
    meaning = fmt::format("{} - {} = {}, the leading bit is 1", field, 1 - format.emin,
                          field - (1 - format.emin));
  }
  print_field("", fmt::format("| exponent: {}", meaning));
  const bool sign_bit = (code >> (format.storage_bits() - 1) & 1) != 0;
  print_field("", fmt::format("sign: {}", sign_bit ? '-' : '+'));
}

// The next value of the format after y in the direction of `towards`, or a note that there is none.
std::string neighbour_text(double y, const Format& format, double towards) {
  const Rounding rounding = towards > y ? Rounding::kUp : Rounding::kDown;
  double next = round_to_format(std::nextafter(y, towards), format, rounding);
  // Flushed: the next value after zero is a normal number.
  if (y == 0 && next == 0) next = std::copysign(format.min_normal(), towards);
  if (next == y) return "none: saturated";
  if (!std::isfinite(next)) return fmt::format("{}: overflow", next);
  return value_text(next);
}

// y minus the number, correctly rounded. Requires: both finite.
double error_of(const ParsedNumber& number, double y) {
  return oracle_round(Exact(y) - number.exact, find_format("fp64"), Rounding::kNearestEven);
}

// In ulps. An error too small for FP64 is shown as a signed zero.
std::string ulps_of(const ParsedNumber& number, double y, const Format& format) {
  if (!std::isfinite(number.odd) || !std::isfinite(y)) return "-";
  const int sign = (Exact(y) - number.exact).sign();
  const double error = error_of(number, y);
  if (sign != 0 && error == 0) return sign > 0 ? "+0.0000 ulp" : "-0.0000 ulp";
  return ulps_text_of(error, number.odd, format);
}

std::string error_text(const ParsedNumber& number, double y, const Format& format) {
  const double x = number.odd;
  if (!std::isfinite(x) || !std::isfinite(y)) return "-";
  if (Exact(y) == number.exact) return "0 (exact)";
  const double error = error_of(number, y);
  if (error == 0) return "not 0, but below FP64's smallest number";
  std::string text = fmt::format("{:.6g} = {} (1 ulp = {:.6g})", error, ulps_of(number, y, format),
                                 ulp(x, format));
  if (number.nearest != 0) text += fmt::format(", relative {:.3g}", error / number.nearest);
  return text;
}

// What the format's suffixes and limits did.
std::string remarks(double x, double y, const Format& format) {
  const double least = format.min_subnormal(), magnitude = std::fabs(x);
  if (std::isnan(x)) {
    return format.has_nan
               ? ""
               : fmt::format("{} has no NaN: the value stays NaN and is counted", format.name);
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
                       format.overflow == OverflowRule::kSaturate ? "saturated" : "rounded");
  }
  if (x != 0 && y == 0) {
    if (magnitude < format.min_normal() && !format.has_subnormals()) {
      return fmt::format("flushed to zero: {} keeps no numbers below 2^{}", format.name,
                         format.emin);
    }
    return fmt::format("underflow to zero: the smallest nonzero magnitude is {:.6g}", least);
  }
  if (x == 0 && std::signbit(x) && !std::signbit(y)) {
    return fmt::format("{} has no -0: its code is the NaN's", format.name);
  }
  if (y != 0 && std::fabs(y) < format.min_normal()) {
    const int kept = std::ilogb(y) - std::ilogb(least) + 1;
    return fmt::format("subnormal: {} of {} significand bits are left", kept, format.precision);
  }
  return "";
}

// How many of the 2^32 random fractions round x away from zero: stochastic rounding is monotone in
// them, so bisection finds where the result changes.
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

// The result of every rounding, with the chosen one marked.
void print_roundings(const ParsedNumber& number, const Format& format, Rounding chosen) {
  const double x = number.odd;
  const auto row = [&](std::string_view name, double y, bool marked, const std::string& tail) {
    std::string text =
        fmt::format("{:<14} {:>10}  {:<26} {:>14}{}", name, hex_bits(y, format),
                    std::isfinite(y) ? fmt::format("{:.17g}", y) : fmt::format("{}", y),
                    ulps_of(number, y, format), tail);
    text.erase(text.find_last_not_of(' ') + 1);
    fmt::print("  {:<{}}{}\n", marked ? "            >" : "", kFieldIndent - 2, text);
  };
  fmt::print("\n  roundings\n");
  for (const RoundingInfo& info : roundings()) {
    if (info.rounding == Rounding::kStochastic) continue;
    row(info.name, round_number(number, format, info.rounding), info.rounding == chosen, "");
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

void print_number(const RoundedNumber& given, const Format& format, const RoundArgs& args,
                  Rounding rounding) {
  const ParsedNumber& x = given.number;
  const double y = round_number(x, format, rounding, args.random);
  // Stochastic rounding has two possible results; without --random the bits are 0.
  const std::string random =
      rounding == Rounding::kStochastic ? fmt::format(", random bits 0x{:08x}", args.random) : "";
  fmt::print("{} in {}, {}{}\n", given.word, format.name, to_string(rounding), random);
  if (given.is_storage_word) {
    print_field("read as",
                fmt::format("storage word of {}: {}", format.name,
                            std::isnan(x.nearest) ? "a NaN, which rounding makes the quiet one"
                                                  : value_text(x.nearest)));
  } else if (!x.is_double) {
    print_field("as fp64", value_text(x.nearest) + ", not used: the number is rounded once");
  }
  print_bits(y, format);
  print_field("value", value_text(y));
  print_field("error", error_text(x, y, format));
  if (std::isfinite(y)) {
    print_field("next below", neighbour_text(y, format, -kInfinity));
    print_field("next above", neighbour_text(y, format, kInfinity));
  }
  print_field("remark", remarks(x.odd, y, format));
  // A value of the format, or NaN: no rounding changes it.
  const bool is_exact = std::isfinite(y) && std::isfinite(x.odd) ? Exact(y) == x.exact : y == x.odd;
  if (!is_exact && !std::isnan(x.odd)) print_roundings(x, format, rounding);
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
      if (is_storage_word(word)) {
        throw InputError(
            fmt::format("value '{}': looks like a storage word; a block takes numbers", word),
            fmt::format("{}p0 is the number in hexadecimal", word));
      }
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
  // A name that starts like a block format's is one, or a misspelt one.
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
    for (const std::string& line : error.lines()) problems.add(line);  // with the format's name
  }
  if (as_block && problems.empty()) {
    round_as_block(args, rounding, problems);
    return kExitFine;
  }
  std::vector<RoundedNumber> numbers;
  for (const std::string& word : args.values) {
    collect_problems(problems, [&] {
      if (!is_storage_word(word)) {
        numbers.push_back({word, parse_exact_number("value", word)});
      } else if (format != nullptr) {
        const double value = decode_word(parse_word(word, *format), *format);
        numbers.push_back({word, ParsedNumber(value), true});
      }
    });
  }
  if (!args.tensor_scale.empty()) {
    problems.add("--tensor-scale: only block formats with a tensor scale have it", "nvfp4 has");
  }
  problems.throw_if_any();
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) fmt::print("\n");
    print_number(numbers[i], *format, args, rounding);
  }
  return kExitFine;
}

}  // namespace

std::function<int()> declare_round(CLI::App& app) {
  auto args = std::make_shared<RoundArgs>();
  app.add_option("VALUE", args->values,
                 "decimal, hexadecimal float (0x1.8p-3), storage word of F (0x3c00), inf,\n"
                 "nan (write -- before -inf); several values: each by itself, or as one block of a "
                 "block format")
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
  checks.number(
      app.add_option("--tensor-scale", args->tensor_scale,
                     "for nvfp4: FP32 scale of the whole tensor [computed from the values]")
          ->type_name("X"));
  return [args, checks] { return run_round(*args, checks.problems()); };
}

}  // namespace lockstep
