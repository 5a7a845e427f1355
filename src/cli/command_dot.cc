// lockstep dot: dot products under a declared accumulator, shown step by step or block by block.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <tuple>

#include "emulation/accumulator/aligned_block.h"
#include "emulation/accumulator/dot.h"
#include "emulation/accumulator/dot_vectors.h"
#include "emulation/format/oracle.h"
#include "emulation/format/rounding.h"
#include "reports/writers/csv_writer.h"
#include "src/cli/arguments/arguments.h"
#include "src/cli/arguments/exact_number.h"
#include "src/cli/command.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

struct DotArgs {
  std::string a, b, c = "0";
  std::string accumulator, format, csv;
  bool quiet = false;
};

// The arguments after all checks.
struct DotRequest {
  const Accumulator* accumulator = nullptr;
  const Format *a_format = nullptr, *b_format = nullptr;
  std::vector<float> a, b;
  double c = 0;
  std::vector<std::string> notes;

  DotOperands<float> operands() const {
    return {a.data(), b.data(), static_cast<int64_t>(a.size()), a_format, b_format};
  }
};

std::string factors_text(const Format& a, const Format& b) {
  return &a == &b ? a.name : a.name + " and " + b.name;
}

const Format& tf32() {
  static const Format& format = find_format("tf32");
  return format;
}

// The number that a tensor core reads from a TF32 register; for other formats the factor itself.
double read_factor(float x, const Format& format, const Accumulator& accumulator) {
  if (accumulator.kind != AccumulatorKind::kAlignedBlocks || !std::isfinite(x)) return x;
  const BlockFactor f = decode_factor(x, format, accumulator.block.tf32_input);
  const double magnitude = std::ldexp(f.significand, f.exponent - format.precision + 1);
  if (f.what != BlockFactor::Class::kFinite) return std::copysign(HUGE_VAL, x);
  return f.negative ? -magnitude : magnitude;
}

// How a number becomes a value of a format. A tensor core's TF32 factor is an FP32 register, which
// the unit itself truncates or rounds; other TF32 factors are rounded as by cvt.rna.
struct FactorRule {
  const Format& stored;
  Rounding rounding = Rounding::kNearestEven;
};
FactorRule factor_rule(const Format& format, const Accumulator& accumulator) {
  if (&format != &tf32()) return {format};
  if (accumulator.kind == AccumulatorKind::kAlignedBlocks) return {find_format("fp32")};
  return {format, Rounding::kNearestAway};
}

// "1.5,-2e-3" or hexadecimal storage words "0x3e00,0xbc00". Without a format the words are only
// checked.
std::vector<double> parse_factors(const std::string& text, const std::string& name,
                                  const Format* format, const DotRequest& request,
                                  std::vector<std::string>& notes, ProblemList& problems) {
  std::vector<double> values;
  for (const std::string& word : split(text, ',')) {
    collect_problems(problems, [&] {
      if (is_storage_word(word)) {
        if (format == nullptr) return;
        try {
          values.push_back(decode_word(parse_word(word, *format), *format));
        } catch (const InputError& error) {
          throw InputError(name + ": " + error.what());
        }
        return;
      }
      const ParsedNumber x = parse_exact_number(name, word);
      if (format == nullptr) return;
      const FactorRule rule = factor_rule(*format, *request.accumulator);
      const double stored = round_number(x, rule.stored, rule.rounding);
      values.push_back(stored);
      if (!std::isfinite(x.nearest)) return;
      if (&rule.stored != format) {
        const double read = read_factor(static_cast<float>(stored), *format, *request.accumulator);
        if (std::isfinite(stored) && Exact(read) == x.exact) return;
        notes.push_back(
            fmt::format("{}: {} is not a value of {}: the unit reads the FP32 register {} "
                        "as {}",
                        name, word, format->name, stored, read));
        return;
      }
      // FP64: few decimals are exact, so no note.
      if (format->is_fp64() || (std::isfinite(stored) && Exact(stored) == x.exact)) return;
      notes.push_back(fmt::format("{}: {} is not a value of {}, rounded to {}", name, word,
                                  format->name, stored));
    });
  }
  return values;
}

// "F", or "F,F" for A and B.
std::pair<const Format*, const Format*> named_formats(const std::string& given) {
  const std::vector<std::string> parts = split(given, ',');
  if (parts.size() > 2) throw InputError("--format " + given + ": must be one format or two");
  std::vector<const Format*> formats;
  for (const std::string& part : parts) {
    formats.push_back(&find_format(part));
    if (!contains(find_format("fp32"), *formats.back())) {
      throw InputError("--format " + part + ": must fit in fp32");
    }
  }
  return {formats.front(), formats.back()};
}

// --format, or without it the accumulator's only one.
std::pair<const Format*, const Format*> factor_formats(const Accumulator& accumulator,
                                                       const std::string& given) {
  std::vector<std::string> names;
  for (const Format* f : accumulator.operands) names.push_back(f->name);
  const std::string takes =
      fmt::format("accumulator {}: takes {}", accumulator.name, join(names, ", "));
  if (given.empty()) {
    if (accumulator.operands.size() > 1) {
      throw InputError(takes, "choose with --format F, or --format F,F for A and B");
    }
    const Format* only = accumulator.operands.size() == 1 ? accumulator.operands[0]
                         : accumulator.format->is_fp64()  ? &find_format("fp32")
                                                          : accumulator.format;
    return {only, only};
  }
  const auto formats = named_formats(given);
  for (const Format* format : {formats.first, formats.second}) {
    if (!accumulator.takes(*format)) throw InputError(takes + ", not " + format->name);
  }
  return formats;
}

DotRequest read_request(const DotArgs& args, ProblemList& problems) {
  DotRequest request;
  collect_problems(problems, [&] { request.accumulator = &find_accumulator(args.accumulator); });
  if (request.accumulator != nullptr) {
    collect_problems(problems, [&] {
      std::tie(request.a_format, request.b_format) =
          factor_formats(*request.accumulator, args.format);
    });
  }
  const auto parse = [&](const std::string& text, const char* name, const Format* format) {
    return parse_factors(text, name, format, request, request.notes, problems);
  };
  // Factors fit in floats: factor_formats has checked that.
  for (const double x : parse(args.a, "A", request.a_format)) {
    request.a.push_back(static_cast<float>(x));
  }
  for (const double x : parse(args.b, "B", request.b_format)) {
    request.b.push_back(static_cast<float>(x));
  }
  const Format* outer =
      request.accumulator == nullptr ? nullptr : request.accumulator->register_format;
  const auto c = parse(args.c, "C", outer);
  if (c.size() == 1) request.c = c[0];
  if (split(args.c, ',').size() != 1) problems.add("C '" + args.c + "': must be one number");
  const size_t a_count = split(args.a, ',').size(), b_count = split(args.b, ',').size();
  if (a_count != b_count) {
    problems.add(
        fmt::format("A has {} factors and B has {}: must be the same number", a_count, b_count));
  }
  return request;
}

// --- pictures ---

void print_block_trace(const BlockTrace& block, size_t index, const BlockSpec& spec) {
  if (block.special) {
    fmt::print("\nblock {}: a term is an infinity or NaN -> {}\n", index, block.result);
    return;
  }
  if (block.terms.empty()) {
    fmt::print("\nblock {}: all terms are zero -> {}\n", index, block.result);
    return;
  }
  const int grid = block.common_exponent - spec.fraction_bits;
  fmt::print("\nblock {}: largest exponent {}, so terms are cut to multiples of 2^{}\n", index,
             block.common_exponent, grid);
  fmt::print("    {:>5}  {:>24}  {:>8}  {:>14}  {}\n", "term", "exact value", "exponent",
             fmt::format("x 2^{}", grid), "cut off");
  for (const BlockTrace::Term& term : block.terms) {
    const double lost = term.value - std::ldexp(static_cast<double>(term.kept), grid);
    const std::string cut = term.dropped ? fmt::format("{:.6g}", lost) : "-";
    fmt::print("    {:>5}  {:>24.17g}  {:>8}  {:>14}  {}\n",
               term.k < 0 ? std::string("c") : fmt::format("k={}", term.k), term.value,
               term.exponent, term.kept, cut);
  }
  fmt::print("    {:>5}  {:>24.17g}  {:>8}  {:>14}\n", "sum",
             std::ldexp(static_cast<double>(block.sum), grid), "", block.sum);
  fmt::print("    leaves as {:.17g}\n", block.result);
}

std::string number_text(double x) {
  return std::isnan(x) ? "nan" : fmt::format("{:.17g}", x);
}

// The blocks' partial sum joins the running sum.
void print_addition(const RegisterAddition& sum, int64_t interval) {
  fmt::print("\nafter {} products: running sum {} + partial sum {} -> {}, by an IEEE addition\n",
             interval, number_text(sum.before), number_text(sum.partial), number_text(sum.after));
}

void print_blocks(const DotRequest& r) {
  const BlockSpec& spec = r.accumulator->block;
  std::vector<BlockTrace> blocks;
  aligned_block_dot(*r.accumulator, r.a.data(), *r.a_format, r.b.data(), *r.b_format,
                    static_cast<int64_t>(r.a.size()), r.c, nullptr, &blocks);
  for (size_t i = 0; i < blocks.size(); ++i) {
    print_block_trace(blocks[i], i, spec);
    if (blocks[i].addition) print_addition(*blocks[i].addition, spec.promotion_interval);
  }
}

// Every operation that rounds, in the unit's own order, with its registers.
void print_steps(const DotRequest& r) {
  const DotSteps steps = trace_dot(*r.accumulator, r.operands(), r.c);
  size_t width = std::string_view("operation").size();
  for (const DotStep& step : steps) {
    width = std::max(width, step.target.size() + 3 + step.formula.size());
  }
  fmt::print("\nacc starts as {}\n", number_text(r.c));
  fmt::print("    {:<{}}  {:>24}  {:>24}\n", "operation", width, "exact", "rounded");
  for (const DotStep& step : steps) {
    fmt::print("    {:<{}}  {:>24}  {:>24}\n", step.target + " = " + step.formula, width,
               number_text(step.exact), number_text(step.rounded));
  }
}

void print_exact(const DotRequest& r, double result) {
  const Accumulator& accumulator = *r.accumulator;
  // A TF32 register may read as another number, or as an infinity.
  const auto read = [&](float x, const Format* format) {
    return read_factor(x, *format, accumulator);
  };
  if (!std::isfinite(result) || !std::isfinite(r.c)) return;
  Exact sum(r.c);
  for (size_t k = 0; k < r.a.size(); ++k) {
    const double a = read(r.a[k], r.a_format), b = read(r.b[k], r.b_format);
    if (!std::isfinite(a) || !std::isfinite(b)) return;
    sum = sum + Exact(a) * Exact(b);
  }
  const double nearest = oracle_round(sum, find_format("fp64"), Rounding::kNearestEven);
  const double error =
      oracle_round(Exact(result) - sum, find_format("fp64"), Rounding::kNearestEven);
  // Ulps of the sum's own format; the register may be wider (E8M13 in FP32).
  const double unit = ulp(nearest, *accumulator.format);
  fmt::print("exact   {:.17g}\n", nearest);
  fmt::print("error   {}\n", error == 0 ? std::string("0 (exact)")
                                        : fmt::format("{:.6g} = {:.4g} ulp of {}", error,
                                                      error / unit, accumulator.format->name));
}

int show_one(const DotArgs& args, ProblemList& problems) {
  const DotRequest r = read_request(args, problems);
  problems.throw_if_any();
  const Accumulator& accumulator = *r.accumulator;
  for (const std::string& note : r.notes) print_note("note: " + note);
  fmt::print("{}: {}\nfactors {}, sum {}\n", accumulator.name, accumulator.help,
             factors_text(*r.a_format, *r.b_format), accumulator.format->name);
  const double result = accumulate_dot(accumulator, r.operands(), r.c);
  if (accumulator.kind == AccumulatorKind::kAlignedBlocks) {
    print_blocks(r);
  } else {
    print_steps(r);
  }
  if (std::isnan(result)) {
    fmt::print("\nresult  nan\n");
  } else {
    fmt::print("\nresult  {:.17g} = {:a}\n", result, result);
  }
  fmt::print("bits    {}\n", bits_by_field(result, *accumulator.register_format));
  if (std::isnan(result) && has_hardware_nan(accumulator)) {
    fmt::print("        {:#x} on the chip; lanes hold the canonical NaN\n",
               result_word(result, accumulator));
  }
  print_exact(r, result);
  return kExitFine;
}

int show_file(const DotArgs& args, ProblemList& problems) {
  DotVectorOptions options;
  std::vector<DotVector> rows;
  collect_problems(problems, [&] {
    if (!args.accumulator.empty()) options.accumulator = &find_accumulator(args.accumulator);
  });
  collect_problems(problems, [&] {
    const Accumulator* all = options.accumulator;
    // Without --format the rows choose the format of a unit that takes several.
    if (all != nullptr && (!args.format.empty() || all->operands.size() == 1)) {
      std::tie(options.a_format, options.b_format) = factor_formats(*all, args.format);
    } else if (!args.format.empty()) {
      std::tie(options.a_format, options.b_format) = named_formats(args.format);
    }
  });
  problems.throw_if_any();
  rows = read_dot_vectors(args.csv, options);
  int64_t compared = 0, mismatches = 0;
  if (!args.quiet) fmt::print("id,accumulator,result,d,same\n");
  for (const DotVector& row : rows) {
    const double result = accumulate_dot(*row.accumulator, row.operands(), row.c);
    const uint64_t word = result_word(result, *row.accumulator);
    const bool same = !row.d_word || same_word(word, *row.d_word, *row.accumulator);
    compared += row.d_word.has_value();
    mismatches += !same;
    if (args.quiet && same) continue;
    const int digits = row.accumulator->register_format->storage_bits() / 4;
    fmt::print("{},{},{:0{}x},{},{}\n", csv_cell(row.id), row.accumulator->name, word, digits,
               row.d_word ? fmt::format("{:0{}x}", *row.d_word, digits) : "",
               !row.d_word ? ""
               : same      ? "yes"
                           : "no");
  }
  fmt::print(stderr, "{} rows, {} with a result to compare with, {} mismatches\n", rows.size(),
             compared, mismatches);
  return mismatches == 0 ? kExitFine : kExitRegression;
}

int run_dot(const DotArgs& args, ProblemList& problems) {
  if (!args.csv.empty()) {
    if (!args.a.empty()) {
      problems.add("A and --csv: both give factors, only one is allowed");
    }
    return show_file(args, problems);
  }
  if (args.a.empty() || args.b.empty()) {
    problems.add("A and B required, or --csv F",
                 "lockstep dot 1,2,3 4,5,6 --accumulator hopper_fp16");
  }
  if (args.accumulator.empty()) {
    problems.add("--accumulator required", "see `lockstep list accumulators`");
  }
  if (args.quiet) problems.add("--quiet: needs --csv, would be ignored here");
  problems.throw_if_any();
  return show_one(args, problems);
}

}  // namespace

std::function<int()> declare_dot(CLI::App& app) {
  auto args = std::make_shared<DotArgs>();
  app.add_option(
         "A", args->a,
         "factors, separated by commas: decimals, hexadecimal floats, or storage words such "
         "as 0x3c00")
      ->type_name("");
  app.add_option("B", args->b, "the same number of factors")->type_name("");
  app.add_option("C", args->c, "start value of the sum")->type_name("")->capture_default_str();
  app.add_option("--accumulator", args->accumulator,
                 "how the sum is formed (see `lockstep list accumulators`), with +SWITCH for "
                 "another rule; with --csv: used for every row [the row's own]")
      ->type_name("ACC");
  app.add_option(
         "--format", args->format,
         "format of the factors, or F,F for A and B [the accumulator's, if it takes only one]")
      ->type_name("F");
  app.add_option("--csv", args->csv,
                 "a file of dot products: columns a, b, c, d, type_ab (or type_a, type_b), arch, "
                 "instr, acc")
      ->type_name("F");
  app.add_flag("--quiet", args->quiet, "with --csv: print only rows whose result differs from d");
  app.footer(
      "Exit codes: 0 fine; 1 with --csv: a result differs from its row's d; 2 usage, input or\n"
      "file error.");
  const ArgumentChecks checks("dot");
  return [args, checks] { return run_dot(*args, checks.problems()); };
}

}  // namespace lockstep
