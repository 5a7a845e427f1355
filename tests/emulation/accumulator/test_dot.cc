// Does every kind of sum equal the one its row declares?
// Each rule is written again on exact rationals (emulation/format/oracle.h), directly from the
// instructions' documents, and compared bit for bit on random storage words. Shares no arithmetic
// with emulation/accumulator/dot.cc, cpu_dot.cc or aligned_block.cc.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <string>
#include <vector>

#include "emulation/accumulator/dot.h"
#include "tests/emulation/accumulator/dot_cases.h"

namespace lockstep {
namespace {

using Numbers = std::vector<double>;

// FTZ after rounding to 24 bits: numbers from half an ulp of the binade below 2^-126 on
// (2^-127-23-1 = 2^-151) round up to 2^-126; a tie goes to its even significand.
double nearest_flushing(const Value& x) {
  return rounded(x, [&](const Exact& e) {
    if (e.magnitude() < power(-126) - power(-151)) return signed_like(0, e);
    return oracle_round(e, fp32(), Rounding::kNearestEven);
  });
}

// Arm without EBF: tininess before rounding, infinity from 2^128 on, otherwise to odd.
double odd_flushing(const Value& x) {
  return rounded(x, [&](const Exact& e) {
    if (e.magnitude() < power(-126)) return signed_like(0, e);
    if (!(e.magnitude() < power(128))) return signed_like(kInfinity, e);
    return oracle_round(e, fp32(), Rounding::kOdd);
  });
}

double flushed(double x) {
  return std::fabs(x) < 0x1p-126 ? std::copysign(0.0, x) : x;
}

// --- the sums ---

using Rule = std::function<double(const Numbers& a, const Numbers& b, double c)>;

double flushing_multiply_add(double a, double b, double c) {
  return nearest_flushing(sum(product(flushed(a), flushed(b)), flushed(c)));
}

double vdpbf16ps(const Numbers& a, const Numbers& b, double c) {
  for (size_t k = 0; k < a.size(); k += 2) {
    const bool pair = k + 1 < a.size();
    c = flushing_multiply_add(pair ? a[k + 1] : 0, pair ? b[k + 1] : 0, c);
    c = flushing_multiply_add(a[k], b[k], c);
  }
  return c;
}

double amx_tile(const Numbers& a, const Numbers& b, double c) {
  constexpr size_t kTile = 32;  // 16-bit factors in a tile's row
  for (size_t begin = 0; begin < a.size(); begin += kTile) {
    double chains[2] = {0, 0};  // even k, odd k
    const size_t end = std::min(begin + kTile, a.size());
    for (size_t k = begin; k < end; ++k) {
      chains[k % 2] = flushing_multiply_add(a[k], b[k], chains[k % 2]);
    }
    if ((end - begin) % 2 != 0) chains[1] = flushing_multiply_add(0, 0, chains[1]);
    c = nearest_flushing(sum(flushed(c), nearest_flushing(sum(chains[0], chains[1]))));
  }
  return c;
}

double bfdot(const Numbers& a, const Numbers& b, double c) {
  for (size_t k = 0; k < a.size(); k += 2) {
    const bool pair = k + 1 < a.size();
    const double p0 = odd_flushing(product(flushed(a[k]), flushed(b[k])));
    const double p1 = pair ? odd_flushing(product(flushed(a[k + 1]), flushed(b[k + 1]))) : 0;
    c = odd_flushing(sum(flushed(c), odd_flushing(sum(p0, p1))));
  }
  return c;
}

double bfdot_ebf(const Numbers& a, const Numbers& b, double c) {
  for (size_t k = 0; k < a.size(); k += 2) {
    const bool pair = k + 1 < a.size();
    const Value second = pair ? product(a[k + 1], b[k + 1]) : Value(0.0);
    c = nearest(sum(c, nearest(sum(product(a[k], b[k]), second))));
  }
  return c;
}

double kahan(const Numbers& a, const Numbers& b, double c) {
  double lost = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    const double y = nearest(sum(nearest(product(a[k], b[k])), -lost));
    const double t = nearest(sum(c, y));
    lost = nearest(sum(nearest(sum(t, -c)), -y));
    c = t;
  }
  return c;
}

// A tree over [begin, end): its left branch has the largest power of two below the whole.
double tree(const Numbers& leaves, size_t begin, size_t end) {
  if (end - begin == 1) return leaves[begin];
  const size_t left = std::bit_floor(end - begin - 1);
  return nearest(sum(tree(leaves, begin, begin + left), tree(leaves, begin + left, end)));
}

double pairwise(const Numbers& a, const Numbers& b, double c) {
  Numbers products;
  for (size_t k = 0; k < a.size(); ++k) products.push_back(nearest(product(a[k], b[k])));
  return nearest(sum(c, tree(products, 0, products.size())));
}

Rule chain(const char* format, bool fused) {
  return [&f = find_format(format), fused](const Numbers& a, const Numbers& b, double c) {
    for (size_t k = 0; k < a.size(); ++k) {
      const Value p = product(a[k], b[k]);
      c = nearest(sum(c, fused ? p : Value(nearest(p, f))), f);
    }
    return c;
  };
}

}  // namespace

TEST_CASE("dot: chains, trees and CPU instructions equal exact arithmetic, bit for bit") {
  const struct {
    const char* name;
    Rule rule;
  } kRules[] = {{"avx512_bf16", vdpbf16ps},
                {"amx_bf16", amx_tile},
                {"amx_fp16", amx_tile},
                {"arm_bfdot", bfdot},
                {"arm_bfdot_ebf", bfdot_ebf},
                {"fp32_kahan", kahan},
                {"fp32_pairwise", pairwise},
                {"fp64_fused", chain("fp64", true)},
                {"fp32_fused", chain("fp32", true)},
                {"fp32_unfused", chain("fp32", false)},
                {"bf16", chain("bf16", true)},
                {"fp16", chain("fp16", true)},
                {"fp16_unfused", chain("fp16", false)}};
  const auto is_tensor_core = [](const Accumulator& row) {
    return row.kind == AccumulatorKind::kAlignedBlocks;
  };
  CHECK(std::size(kRules) +
            static_cast<size_t>(std::ranges::count_if(accumulators(), is_tensor_core)) ==
        accumulators().size());
  constexpr int kCounts[] = {1, 2, 3, 4, 5, 7, 31, 32, 33, 65};
  constexpr int kTrials = 1500;
  uint32_t stream = 0;
  for (const auto& [name, rule] : kRules) {
    CAPTURE(name);
    const Accumulator& row = find_accumulator(name);
    const Format& factors = !row.operands.empty()   ? *row.operands[0]
                            : row.format->is_fp64() ? fp32()
                                                    : *row.format;
    Words words(++stream);
    for (int trial = 0; trial < kTrials; ++trial) {
      // One in three is long.
      const int count = kCounts[words.below(words.one_in(3) ? std::size(kCounts) : 5)];
      const Case x = random_case(factors, factors, *row.register_format, count, words);
      const DotOperands<float> o{x.a.data(), x.b.data(), count, &factors, &factors};
      CAPTURE(trial);
      CAPTURE(count);
      check_same(accumulate_dot(row, o, x.c),
                 rule(Numbers(x.a.begin(), x.a.end()), Numbers(x.b.begin(), x.b.end()), x.c));
    }
  }
}

TEST_CASE("dot: the edges of flushing and of overflow") {
  const auto step = [](const char* name, float a, float b, double c) {
    const Format& bf16 = find_format("bf16");
    return accumulate_dot(find_accumulator(name), DotOperands<float>{&a, &b, 1, &bf16, &bf16}, c);
  };
  // 24 bits of unbounded exponent have a midpoint at 2^-126 - 2^-151, a tie that goes up. Numbers
  // below it are tiny after rounding, although subnormals' spacing would round them to 2^-126.
  CHECK(step("avx512_bf16", 0x1p-75f, -0x1p-76f, 0x1p-126) == 0x1p-126);
  check_same(step("avx512_bf16", 0x1.02p-75f, -0x1p-76f, 0x1p-126), 0);
  // FP32's largest number is odd and stays below 2^128; nearest even goes to infinity from half an
  // ulp (2^103) on.
  constexpr double kLargest = 0x1.fffffep127;
  CHECK(step("arm_bfdot", 0x1p52f, 0x1p51f, kLargest) == kLargest);
  CHECK(step("arm_bfdot", 0x1p52f, 0x1p52f, kLargest) == kInfinity);
  CHECK(step("arm_bfdot_ebf", 0x1p52f, 0x1p51f, kLargest) == kInfinity);
  CHECK(step("avx512_bf16", 0x1p52f, 0x1p51f, kLargest) == kInfinity);
}

TEST_CASE("dot: without products the result is the addend, and any NaN gives the canonical NaN") {
  for (const Accumulator& row : accumulators()) {
    CAPTURE(row.name);
    const Format* format = row.operands.empty() ? row.register_format : row.operands[0];
    const float nan = std::bit_cast<float>(0xffc00000);  // x86's own
    const float one = 1;
    check_same(accumulate_dot(row, DotOperands<float>{&one, &one, 0, format, format}, 1.5), 1.5);
    check_same(accumulate_dot(row, DotOperands<float>{&nan, &one, 1, format, format}, 1), kNan);
    check_same(accumulate_dot(row, DotOperands<float>{&one, &one, 1, format, format}, -double{nan}),
               kNan);
  }
}

}  // namespace lockstep
