// Does a tensor core's block follow the rule in docs/accumulators.md?
// The rule of its section 2 is written again on exact rationals and the rows' parameters alone, and
// compared with every row, every pair of factor formats and every switched rule. Then events by
// hand. Shares no arithmetic with emulation/accumulator/aligned_block_core.h.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "emulation/accumulator/dot.h"
#include "tests/emulation/accumulator/dot_cases.h"

namespace lockstep {
namespace {

// The exponent of the encoding: emin for zeros and subnormals.
int encoded_exponent(double x, const Format& format) {
  return x == 0 ? format.emin : std::max(std::ilogb(x), format.emin);
}

struct Product {
  Value value;
  int exponent;
};

const Format& output_format(BlockOutput output) {
  return find_format(output == BlockOutput::kFp32TowardZero    ? "fp32"
                     : output == BlockOutput::kE8m13TowardZero ? "e8m13"
                                                               : "fp16");
}

const Format& register_of(BlockOutput output) {
  return find_format(output == BlockOutput::kFp16NearestEven ? "fp16" : "fp32");
}

// Rounds a finite exact sum to the block's output.
double leave(const Exact& x, const BlockSpec& spec) {
  if (x.sign() == 0) return 0;
  const Format& format = output_format(spec.output);
  const bool to_nearest = spec.output == BlockOutput::kFp16NearestEven;
  if (!to_nearest && !(x.magnitude() < power(128))) return signed_like(kInfinity, x);
  const double out =
      oracle_round(x, format, to_nearest ? Rounding::kNearestEven : Rounding::kTowardZero);
  return out == 0 && !spec.keeps_negative_zero ? 0 : out;
}

double block(const BlockSpec& spec, const std::vector<Product>& products, double c, int& events) {
  Value all = c;  // step 1: only its class matters
  for (const Product& p : products) {
    if (p.value.nan || p.value.infinite) all = sum(all, p.value);
  }
  if (all.nan) events |= kStepNan;
  if (all.nan || all.infinite) return all.nan ? kNan : all.negative ? -kInfinity : kInfinity;

  const Format& outer = register_of(spec.output);
  std::vector<Exact> terms;
  int common = spec.exponent_floor;
  for (const Product& p : products) {
    const bool is_zero = p.value.exact.sign() == 0;
    if (!is_zero) terms.push_back(p.value.exact);
    if (!is_zero || spec.zero_products != ZeroProducts::kIgnored)
      common = std::max(common, p.exponent);
  }
  if (c != 0) {
    terms.emplace_back(c);
    common = std::max(common, encoded_exponent(c, outer));
  }
  if (terms.empty()) return 0;

  const int grid = common - spec.fraction_bits;
  Exact total;
  bool inexact = false;
  for (const Exact& term : terms) {
    Exact rest;
    const Exact kept(term.floor_quotient(grid, &rest), grid);
    total = term.sign() < 0 ? total - kept : total + kept;
    inexact = inexact || rest.sign() != 0;
  }
  const double out = leave(total, spec);
  if (std::isinf(out)) {
    events |= kStepToInfinity | kStepInexact;
  } else if (inexact || !(Exact(out) == total)) {
    events |= out == 0 ? kStepInexact | kStepToZero : kStepInexact;
  }
  return out;
}

// The chain over k: blocks of consecutive products, or intervals whose results are added to the
// sum.
double chain_of_blocks(const BlockSpec& spec, std::vector<Product> products, double c,
                       int& events) {
  const auto length = static_cast<size_t>(spec.length);
  const auto run = [&](std::vector<Product> of, double start) {
    for (size_t k = 0; k < of.size(); k += length) {
      const auto first = of.begin() + static_cast<ptrdiff_t>(k);
      const auto last = of.begin() + static_cast<ptrdiff_t>(std::min(k + length, of.size()));
      start = block(spec, {first, last}, start, events);
    }
    return start;
  };
  if (spec.promotion_interval == 0) return run(products, c);

  const auto interval = static_cast<size_t>(spec.promotion_interval);
  const Format& outer = register_of(spec.output);
  for (size_t begin = 0; begin < products.size(); begin += interval) {
    std::vector<Product> early, late;
    for (size_t i = 0; i < interval; ++i) {
      const bool is_late = spec.order == ProductOrder::kPairsOfFour && i % 4 >= 2;
      // Padding is zeros, which count only if zero products do.
      const bool is_there = begin + i < products.size();
      if (!is_there && spec.order == ProductOrder::kAscending) continue;
      (is_late ? late : early).push_back(is_there ? products[begin + i] : Product{0.0, -1000});
    }
    early.insert(early.end(), late.begin(), late.end());
    const double partial = run(early, 0);
    const Value exact = sum(c, partial);
    const bool finite = std::isfinite(c) && std::isfinite(partial);
    c = nearest(exact, outer);
    if (std::isnan(c)) events |= kStepNan;
    if (finite && std::isinf(c)) events |= kStepToInfinity | kStepInexact;
    if (finite && std::isfinite(c) && !(Exact(c) == exact.exact)) events |= kStepInexact;
  }
  return c;
}

// TF32 registers are read without their low 13 bits, infinities and NaN too; or finite ones are
// rounded.
double as_read(float x, const Format& format, Tf32Input input) {
  if (&format != &find_format("tf32")) return x;
  if (input != Tf32Input::kTruncate && std::isfinite(x)) {
    const bool away = input == Tf32Input::kNearestAway;
    return round_to_format(x, format, away ? Rounding::kNearestAway : Rounding::kNearestEven);
  }
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffffe000);
}

// Random registers for TF32, whose ignored bits are set at random.
void scramble_ignored_bits(std::vector<float>& factors, Words& words) {
  for (float& x : factors) {
    x = std::bit_cast<float>(std::bit_cast<uint32_t>(x) | (words.bits() & 0x1fff));
  }
}

std::vector<const Accumulator*> rows_and_variants() {
  std::vector<const Accumulator*> out;
  for (const Accumulator& row : accumulators()) {
    if (row.kind != AccumulatorKind::kAlignedBlocks) continue;
    out.push_back(&row);
    std::vector<std::string> variants = {"+negative_zero", "+count_zero_products", "+mmasim_zero"};
    if (row.block.exponent_floor != BlockSpec::kNoFloor) {
      variants.insert(variants.end(), {"+mmasim_floor", "+negative_zero+no_floor"});
    }
    const bool is_compiled = row.block.order == ProductOrder::kPairsOfFour;
    if (is_compiled && row.register_format->is_fp32()) variants.emplace_back("+one_block");
    if (row.takes(find_format("tf32"))) {
      variants.insert(variants.end(), {"+nearest_away", "+nearest_even"});
    }
    for (const std::string& v : variants) out.push_back(&find_accumulator(row.name + v));
  }
  return out;
}

int events_of(const char* accumulator, const char* format, std::vector<float> a,
              std::vector<float> b, double c, double want) {
  const Format& f = find_format(format);
  uint8_t events = 0;
  const double got = accumulate_dot(
      find_accumulator(accumulator),
      DotOperands<float>{a.data(), b.data(), static_cast<int64_t>(a.size()), &f, &f}, c, &events);
  check_same(got, want);
  return events;
}

}  // namespace

TEST_CASE("aligned blocks: every row equals the rule in exact rationals, results and events") {
  uint32_t stream = 100;
  int64_t dots = 0;
  for (const Accumulator* row : rows_and_variants()) {
    CAPTURE(row->name);
    const bool is_variant = row->name.find('+') != std::string::npos;
    for (const Format* fa : row->operands) {
      for (const Format* fb : row->operands) {
        CAPTURE(fa->name);
        CAPTURE(fb->name);
        Words words(++stream);
        const int trials = (row->operands.size() == 1 ? 400 : 60) / (is_variant ? 2 : 1);
        for (int trial = 0; trial < trials; ++trial) {
          const int step = std::max(row->block.length, row->block.promotion_interval);
          const int count = 1 + words.below(words.one_in(4) ? 3 * step : row->block.length);
          Case x = random_case(*fa, *fb, *row->register_format, count, words);
          if (words.one_in(2)) x.c = 0;  // only then does the floor show
          if (fa == &find_format("tf32")) {
            scramble_ignored_bits(x.a, words);
            scramble_ignored_bits(x.b, words);
          }
          const auto counted_exponent = [&](double x, const Format& own) {
            const Format& format = row->block.factors_as_fp16 ? find_format("fp16") : own;
            const bool is_mmasim = row->block.zero_products == ZeroProducts::kFp32Emin;
            return x == 0 && is_mmasim ? -126 : encoded_exponent(x, format);
          };
          std::vector<Product> products;
          for (int k = 0; k < count; ++k) {
            const Tf32Input input = row->block.tf32_input;
            const double p = as_read(x.a[k], *fa, input), q = as_read(x.b[k], *fb, input);
            const bool finite = std::isfinite(p) && std::isfinite(q);
            const int exponent = finite ? counted_exponent(p, *fa) + counted_exponent(q, *fb) : 0;
            products.push_back({product(p, q), exponent});
          }
          // Instructions are padded with zeros, whose exponents count under U2.
          if (row->block.zero_products != ZeroProducts::kIgnored) {
            const bool interleaved = row->block.order == ProductOrder::kPairsOfFour;
            const int whole = interleaved ? row->block.promotion_interval : row->block.length;
            while (products.size() % static_cast<size_t>(whole) != 0) {
              products.push_back({0.0, counted_exponent(0, *fa) + counted_exponent(0, *fb)});
            }
          }
          int want_events = 0;
          const double want = chain_of_blocks(row->block, products, x.c, want_events);
          uint8_t events = 0;
          const DotOperands<float> o{x.a.data(), x.b.data(), count, fa, fb};
          CAPTURE(trial);
          CAPTURE(count);
          check_same(accumulate_dot(*row, o, x.c, &events), want);
          REQUIRE(int(events) == want_events);
          ++dots;
        }
      }
    }
  }
  MESSAGE("dot products: ", dots);
}

TEST_CASE("aligned blocks: events") {
  // E = 0 and F = 25: 2^-28 lies below the grid, and 1 - 1 leaves nothing.
  CHECK(events_of("hopper_fp16", "fp16", {1, -1, 0x1p-14f}, {1, 1, 0x1p-14f}, 0, 0) ==
        (kStepInexact | kStepToZero));
  CHECK(events_of("hopper_fp16", "fp16", {1, -1}, {1, 1}, 0, 0) == 0);
  // 120000 is beyond 65520, the midpoint above FP16's largest number.
  CHECK(events_of("hopper_fp16_acc16", "fp16", {60000, 60000}, {1, 1}, 0, kInfinity) ==
        (kStepToInfinity | kStepInexact));
  const auto infinity = static_cast<float>(kInfinity);
  CHECK(events_of("hopper_fp16", "fp16", {infinity}, {1}, 0, kInfinity) == 0);
  CHECK(events_of("hopper_fp16", "fp16", {infinity}, {0}, 0, kNan) == kStepNan);
  CHECK(events_of("hopper_fp16", "fp16", {infinity, infinity}, {1, -1}, 0, kNan) == kStepNan);
  // 448 * 448 = 2^17 * 1.53125 leaves its block exactly; the addition to FP32's largest number,
  // whose ulp is 2^104, rounds it away.
  CHECK(events_of("hopper_fp8_promoted", "fp8_e4m3", {448}, {448}, 0x1.fffffep127,
                  0x1.fffffep127) == kStepInexact);
  CHECK(events_of("hopper_fp8_promoted", "fp8_e4m3", {448}, {448}, 1, 200705) == 0);
  // FP32's largest number is the largest that truncation leaves; 2^128 is infinite.
  CHECK(events_of("hopper_bf16", "bf16", {0x1p127f}, {1}, 0x1p127, kInfinity) ==
        (kStepToInfinity | kStepInexact));
}

}  // namespace lockstep
