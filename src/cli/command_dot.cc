// lockstep dot: dot products under a declared accumulator, shown step by step or block by block.
#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "emulation/aligned_block.h"
#include "emulation/dot_vectors.h"
#include "emulation/oracle.h"
#include "emulation/rounding.h"
#include "src/cli/arguments.h"
#include "src/cli/command.h"
#include "src/cli/number_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

struct DotArgs {
  std::string a, b, c = "0";
  std::string accumulator, format, csv;
  bool quiet = false;
};

// What the arguments say, after all of them were looked at.
struct DotRequest {
  const Accumulator* accumulator = nullptr;
  const Format* format = nullptr;
  std::vector<float> a, b;
  double c = 0;
  std::vector<std::string> notes;
};

// "1.5,-2e-3" or hexadecimal storage words "0x3e00,0xbc00".
std::vector<double> parse_factors(const std::string& text, const std::string& name,
                                  const Format& format, DotRequest& request,
                                  ProblemList& problems) {
  std::vector<double> values;
  for (const std::string& word : split(text, ',')) {
    collect_problems(problems, [&] {
      const bool is_hex = word.find_first_of("xX") != word.npos;
      if (is_hex && word.find_first_of(".pP") == word.npos) {
        values.push_back(decode_word(parse_word(word, format), format));
        return;
      }
      const double x = parse_number(name, word);
      const double rounded = round_to_format(x, format, Rounding::kNearestEven);
      values.push_back(rounded);
      if (rounded == x || std::isnan(x)) return;
      request.notes.push_back(
          fmt::format("{}: {} is no value of {}, rounded to {}", name, word, format.name, rounded));
    });
  }
  return values;
}

const Format& factor_format(const Accumulator& accumulator, const std::string& given) {
  if (!given.empty()) {
    const Format& format = find_format(given);
    if (!contains(find_format("fp32"), format)) {
      throw InputError("--format " + given + ": must fit in fp32");
    }
    if (accumulator.takes(format)) return format;
  }
  if (given.empty() && accumulator.operands.size() == 1) return *accumulator.operands[0];
  if (given.empty() && accumulator.operands.empty()) {
    return accumulator.format->is_fp64() ? find_format("fp32") : *accumulator.format;
  }
  std::vector<std::string> names;
  for (const Format* f : accumulator.operands) names.push_back(f->name);
  throw InputError(fmt::format("accumulator {}: takes {}{}", accumulator.name, join(names, ", "),
                               given.empty() ? "" : ", not " + given),
                   "choose one of them with --format");
}

DotRequest read_request(const DotArgs& args, ProblemList& problems) {
  DotRequest request;
  collect_problems(problems, [&] { request.accumulator = &find_accumulator(args.accumulator); });
  if (request.accumulator == nullptr) return request;
  collect_problems(problems,
                   [&] { request.format = &factor_format(*request.accumulator, args.format); });
  if (request.format == nullptr) return request;
  // Factors fit in floats: factor_format saw to it.
  for (const double x : parse_factors(args.a, "A", *request.format, request, problems)) {
    request.a.push_back(static_cast<float>(x));
  }
  for (const double x : parse_factors(args.b, "B", *request.format, request, problems)) {
    request.b.push_back(static_cast<float>(x));
  }
  const auto c =
      parse_factors(args.c, "C", *request.accumulator->register_format, request, problems);
  if (c.size() == 1) request.c = c[0];
  if (problems.empty() && c.size() != 1) problems.add("C '" + args.c + "': must be one number");
  if (problems.empty() && request.a.size() != request.b.size()) {
    problems.add(fmt::format("A has {} factors and B has {}: must be equally many",
                             request.a.size(), request.b.size()));
  }
  return request;
}

// --- pictures ---

void print_block(const BlockTrace& block, size_t index, const BlockSpec& spec) {
  if (block.special) {
    fmt::print("\nblock {}: an infinity or a NaN takes part -> {}\n", index, block.result);
    return;
  }
  if (block.terms.empty()) {
    fmt::print("\nblock {}: nothing but zeros -> {}\n", index, block.result);
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

// The running sum after every factor that its accumulator looks at by itself.
void print_steps(const DotRequest& r) {
  const bool in_pairs = r.accumulator->kind == AccumulatorKind::kBf16Pairs ||
                        r.accumulator->kind == AccumulatorKind::kArmPairs ||
                        r.accumulator->kind == AccumulatorKind::kArmPairsFused;
  const int64_t step = in_pairs ? 2 : 1;
  const auto count = static_cast<int64_t>(r.a.size());
  fmt::print("\n    {:>5}  {:>24}  {:>24}\n", "k", "exact product", "sum of k = 0 to here");
  for (int64_t k = 0; k < count; ++k) {
    const double product = double{r.a[static_cast<size_t>(k)]} * r.b[static_cast<size_t>(k)];
    const bool shows = (k + 1) % step == 0 || k + 1 == count;
    std::string sum;
    if (shows) {
      const DotOperands<float> head{r.a.data(), r.b.data(), k + 1, r.format, r.format};
      sum = fmt::format("{:.17g}", accumulate_dot(*r.accumulator, head, r.c));
    }
    fmt::print("    {:>5}  {:>24.17g}  {:>24}\n", k, product, sum);
  }
}

double exact_factor(float x, const Format& format) {
  const BlockFactor f = decode_factor(x, format);
  const double magnitude = std::ldexp(f.significand, f.exponent - format.precision + 1);
  return f.negative ? -magnitude : magnitude;
}

void print_exact(const DotRequest& r, double result) {
  const auto finite = [](double x) { return std::isfinite(x); };
  const bool all_finite = std::all_of(r.a.begin(), r.a.end(), finite) &&
                          std::all_of(r.b.begin(), r.b.end(), finite) && finite(r.c);
  if (!all_finite || !std::isfinite(result)) return;
  // A TF32 product ignores its registers' low bits.
  const auto read = [&](float x) { return exact_factor(x, *r.format); };
  Exact sum(r.c);
  for (size_t k = 0; k < r.a.size(); ++k) {
    sum = sum + Exact(read(r.a[k])) * Exact(read(r.b[k]));
  }
  const double nearest = oracle_round(sum, find_format("fp64"), Rounding::kNearestEven);
  const double error =
      oracle_round(Exact(result) - sum, find_format("fp64"), Rounding::kNearestEven);
  const double unit = ulp(nearest, *r.accumulator->register_format);
  fmt::print("exact   {:.17g}\n", nearest);
  fmt::print("error   {}\n", error == 0
                                 ? std::string("0 (exact)")
                                 : fmt::format("{:.6g} = {:.4g} ulp of {}", error, error / unit,
                                               r.accumulator->register_format->name));
}

int show_one(const DotArgs& args, ProblemList& problems) {
  const DotRequest r = read_request(args, problems);
  problems.throw_if_any();
  const Accumulator& accumulator = *r.accumulator;
  for (const std::string& note : r.notes) fmt::print(stderr, "lockstep: note: {}\n", note);
  fmt::print("{}: {}\nfactors {}, sum {}\n", accumulator.name, accumulator.help, r.format->name,
             accumulator.format->name);
  const DotOperands<float> operands{r.a.data(), r.b.data(), static_cast<int64_t>(r.a.size()),
                                    r.format, r.format};
  const double result = accumulate_dot(accumulator, operands, r.c);
  if (accumulator.kind == AccumulatorKind::kAlignedBlocks) {
    std::vector<BlockTrace> blocks;
    aligned_block_dot(accumulator, r.a.data(), *r.format, r.b.data(), *r.format, operands.count,
                      r.c, nullptr, &blocks);
    for (size_t i = 0; i < blocks.size(); ++i) print_block(blocks[i], i, accumulator.block);
    if (accumulator.block.promotion_interval != 0) {
      fmt::print(
          "\nevery {} products, what the blocks left joins the running sum by an IEEE "
          "addition\n",
          accumulator.block.promotion_interval);
    }
  } else {
    print_steps(r);
  }
  fmt::print("\nresult  {:.17g} = {:a}\n", result, result);
  fmt::print("bits    {}\n", bits_by_field(result, *accumulator.register_format));
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
    if (!args.format.empty()) {
      options.format = &find_format(args.format);
    } else if (options.accumulator != nullptr && options.accumulator->operands.size() == 1) {
      options.format = options.accumulator->operands[0];
    }
  });
  problems.throw_if_any();
  rows = read_dot_vectors(args.csv, options);
  int64_t compared = 0, mismatches = 0;
  if (!args.quiet) fmt::print("id,accumulator,result,d,same\n");
  for (const DotVector& row : rows) {
    const double result = accumulate_dot(*row.accumulator, row.operands(), row.c);
    const bool same = !row.d || same_result(result, *row.d);
    compared += row.d.has_value();
    mismatches += !same;
    if (args.quiet && same) continue;
    const int digits = row.accumulator->register_format->storage_bits() / 4;
    const auto word = [&](double x) {
      return fmt::format("{:0{}x}", result_word(x, *row.accumulator), digits);
    };
    fmt::print("{},{},{},{},{}\n", row.id, row.accumulator->name, word(result),
               row.d ? word(*row.d) : "",
               !row.d ? ""
               : same ? "yes"
                      : "no");
  }
  fmt::print(stderr, "{} rows, {} with a result to compare with, {} mismatches\n", rows.size(),
             compared, mismatches);
  return mismatches == 0 ? kExitFine : kExitRegression;
}

int run_dot(const DotArgs& args, ProblemList& problems) {
  if (!args.csv.empty()) {
    if (!args.a.empty()) {
      problems.add("A and --csv: one of them gives the factors, must not be both");
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
  app.add_option("B", args->b, "as many factors")->type_name("");
  app.add_option("C", args->c, "what the sum starts from")->type_name("")->capture_default_str();
  app.add_option("--accumulator", args->accumulator,
                 "how the sum is formed (see `lockstep list accumulators`), with +SWITCH for an "
                 "unsettled rule; with --csv: of every row [the row's own]")
      ->type_name("ACC");
  app.add_option("--format", args->format, "of the factors [the accumulator's only one]")
      ->type_name("F");
  app.add_option("--csv", args->csv,
                 "a file of dot products: columns a, b, c, d, type_ab, arch, instr, acc")
      ->type_name("F");
  app.add_flag("--quiet", args->quiet, "with --csv: only rows whose result differs from d");
  const ArgumentChecks checks("dot");
  return [args, checks] { return run_dot(*args, checks.problems()); };
}

}  // namespace lockstep
