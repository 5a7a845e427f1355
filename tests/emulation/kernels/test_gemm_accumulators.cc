// Checks that every vector kernel forms a sum as its accumulator declares. Every row of the table,
// with every switch and every pair of operand formats it allows, against the scalar loops, bit for
// bit, events included.
#include <doctest/doctest.h>

#include <limits>
#include <set>
#include <span>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/simd/products/gemm_plan.h"
#include "src/core/error.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

// In addition to DataKind: kCodes: finite codes of the format, all exponents equally likely.
// kSparse: the same with half of the factors zero.  kTop: the largest significand, nearly all
// positive, so that a block's integer sum is as large as it can be.  kZeros: zeros, most of them
// negative.  kRaw: floats, only for TF32 registers.
enum class Extra { kNone, kCodes, kSparse, kTop, kZeros, kRaw };
struct Kind {
  DataKind data = DataKind::kSmall;
  Extra extra = Extra::kNone;
};

std::vector<Kind> kinds(const Accumulator& accumulator) {
  std::vector<Kind> list;
  for (const DataKind data : kAllData) list.push_back({data, Extra::kNone});
  for (const Extra extra : {Extra::kCodes, Extra::kSparse, Extra::kTop, Extra::kZeros}) {
    list.push_back({DataKind::kSmall, extra});
  }
  if (accumulator.operands.empty() || accumulator.operands[0]->name == "tf32") {
    list.push_back({DataKind::kSmall, Extra::kRaw});
  }
  return list;
}

float finite_code(const Format& format, uint64_t bits) {
  for (;; bits = bits * 0x9e3779b97f4a7c15 + 1) {
    const double x = decode(bits >> 20 & ((uint64_t{1} << format.storage_bits()) - 1), format);
    if (std::isfinite(x)) return static_cast<float>(x);
  }
}

std::vector<float> factors(size_t count, const Kind& kind, const Format& format, uint32_t index) {
  if (kind.extra == Extra::kNone) return make_data<float>(count, kind.data, format, index);
  const RandomStream random(21, RandomPurpose::kTest, index);
  std::vector<float> x(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = random.bits(i);
    if (kind.extra == Extra::kRaw) {
      x[i] = std::bit_cast<float>(static_cast<uint32_t>(bits));
      // NaN only by its last bit, which TF32 ignores: an infinity there.
      if (bits % 97 == 0) x[i] = std::bit_cast<float>(0x7f800001u);
      if (!std::isfinite(x[i]) && bits % 97 != 0) x[i] = 1;
      continue;
    }
    if (kind.extra == Extra::kTop) {
      const double top = (2 - format.machine_epsilon()) * (bits % 8 == 0 ? 0.5 : 1);
      const double value = round_to_format(top, format, Rounding::kTowardZero);
      x[i] = static_cast<float>(bits % 61 == 0 ? -value : value);
      continue;
    }
    if (kind.extra == Extra::kZeros) {
      x[i] = bits % 4 == 0 ? 0.0f : -0.0f;
      continue;
    }
    x[i] = kind.extra == Extra::kSparse && bits % 2 == 0 ? 0 : finite_code(format, bits);
  }
  return x;
}

struct Problem {
  bool transpose_a, transpose_b, start_from_c, with_events;
  int64_t m, n, k;
};
// Around the edges of tiles (32 rows, 64 columns), of blocks and of promotion intervals.
constexpr Problem kProblems[] = {{false, false, false, false, 3, 65, 33},
                                 {true, false, true, true, 33, 17, 31},
                                 {false, true, true, false, 2, 7, 300},
                                 {true, true, false, true, 1, 40, 129},
                                 {false, false, true, true, 35, 1, 1}};

struct Result {
  std::vector<float> c;
  std::vector<uint8_t> events;
};

Result multiply(const KernelSet& set, const Problem& p, const Accumulator& accumulator,
                const Format& a_format, const Format& b_format, const Kind& kind) {
  const auto a = factors(static_cast<size_t>(p.m * p.k), kind, a_format, 1);
  const auto b = factors(static_cast<size_t>(p.k * p.n), kind, b_format, 2);
  const Format& register_format =
      accumulator.register_format->is_fp64() ? find_format("fp32") : *accumulator.register_format;
  const Kind start = kind.extra == Extra::kRaw ? Kind{DataKind::kSmall, Extra::kCodes} : kind;
  Result r{factors(static_cast<size_t>(p.m * p.n), start, register_format, 3), {}};
  if (p.with_events) r.events.assign(r.c.size(), 0);
  set.f32.gemm({.transpose_a = p.transpose_a,
                .transpose_b = p.transpose_b,
                .m = p.m,
                .n = p.n,
                .k = p.k,
                .a = a.data(),
                .lda = p.transpose_a ? p.m : p.k,
                .b = b.data(),
                .ldb = p.transpose_b ? p.k : p.n,
                .c = r.c.data(),
                .ldc = p.n,
                .start_from_c = p.start_from_c,
                .accumulator = &accumulator,
                .a_format = &a_format,
                .b_format = &b_format,
                .events = p.with_events ? r.events.data() : nullptr});
  return r;
}

bool has_events(const Accumulator& accumulator) {
  return accumulator.adds() || accumulator.kind == AccumulatorKind::kAlignedBlocks;
}

struct Count {
  int64_t problems = 0, outputs = 0, finite = 0;
};

void compare(const Accumulator& accumulator, const Format& a, const Format& b, Count& count,
             std::span<const Problem> problems = kProblems) {
  for (const Kind& kind : kinds(accumulator)) {
    for (Problem p : problems) {
      p.with_events = p.with_events && has_events(accumulator);
      const Result want = multiply(scalar_kernels(), p, accumulator, a, b, kind);
      for (const KernelSet* set : available_kernel_sets()) {
        if (set == &scalar_kernels()) continue;
        const Result got = multiply(*set, p, accumulator, a, b, kind);
        ++count.problems;
        count.outputs += static_cast<int64_t>(got.c.size());
        for (const float x : got.c) count.finite += std::isfinite(x);
        CAPTURE(set->name);
        CAPTURE(accumulator.name);
        CAPTURE(a.name);
        CAPTURE(b.name);
        CAPTURE(static_cast<int>(kind.data));
        CAPTURE(static_cast<int>(kind.extra));
        CAPTURE(p.m);
        CAPTURE(p.n);
        CAPTURE(p.k);
        if (same_bits(got.c, want.c) && same_bits(got.events, want.events)) continue;
        for (size_t i = 0; i < got.c.size(); ++i) {
          CAPTURE(i);
          REQUIRE(std::bit_cast<uint32_t>(got.c[i]) == std::bit_cast<uint32_t>(want.c[i]));
          if (p.with_events) REQUIRE(int(got.events[i]) == int(want.events[i]));
        }
      }
    }
  }
}

std::vector<const Format*> operands(const Accumulator& accumulator) {
  if (!accumulator.operands.empty()) return accumulator.operands;
  return {&find_format("fp32"), &find_format("bf16"), &find_format("fp16")};
}

// The row itself and one variant per switch that changes it.
std::vector<const Accumulator*> variants(const Accumulator& row) {
  std::vector<const Accumulator*> list = {&row};
  for (const AccumulatorSwitch& s : accumulator_switches()) {
    if (s.is_default) continue;
    try {
      list.push_back(&find_accumulator(row.name + "+" + std::string(s.name)));
    } catch (const InputError&) {  // the row does not have this switch
    }
  }
  return list;
}

}  // namespace

TEST_CASE("gemm accumulators: every row equals the scalar loops" * doctest::test_suite("slow")) {
  Count count;
  int64_t pairs = 0;
  for (const Accumulator& row : accumulators()) {
    const auto formats = operands(row);
    for (const Format* a : formats) {
      for (const Format* b : formats) {
        // Chains allow any pair; equal formats are enough.
        if (row.operands.empty() && a != b) continue;
        ++pairs;
        compare(row, *a, *b, count);
      }
    }
  }
  MESSAGE(pairs, " accumulators and operand formats, ", count.problems, " products, ",
          count.outputs, " outputs, ", count.finite, " finite");
  CHECK(pairs >= static_cast<int64_t>(accumulators().size()));
  CHECK(count.finite > count.outputs / 2);
}

TEST_CASE("gemm accumulators: every switch equals the scalar loops" * doctest::test_suite("slow")) {
  Count count;
  std::set<std::string> names;
  for (const Accumulator& row : accumulators()) {
    for (const Accumulator* variant : variants(row)) {
      if (variant == &row) continue;
      names.insert(variant->name);
      const auto formats = operands(*variant);
      compare(*variant, *formats.front(), *formats.back(), count);
    }
  }
  MESSAGE(names.size(), " variants, ", count.problems, " products, ", count.outputs, " outputs");
  CHECK(names.size() > accumulators().size());
}

TEST_CASE("gemm accumulators: Arm's sums over several blocks of k") {
  Count count;
  const Problem problem = {false, false, true, false, 5, 35, 2 * kBlockK + 5};
  for (const char* name : {"arm_bfdot", "arm_bfdot_ebf"}) {
    const Accumulator& accumulator = find_accumulator(name);
    compare(accumulator, find_format("bf16"), find_format("bf16"), count, {&problem, 1});
  }
  CHECK(count.finite > count.outputs / 2);
}

// Few significands and exponents, so that sums cancel or reach 2^128, 2^-126 or half a subnormal,
// in 2, 3 or 4 products; some are far smaller than the rest.
TEST_CASE("gemm accumulators: CPU instructions at the ends of the exponent range") {
  struct Exponents {
    int a, b;
  };
  constexpr int64_t kM = 40, kN = 70;
  constexpr float kSignificands[] = {1, 1.5f, 1.75f, 1.25f};
  const auto power = [&](uint64_t bits, int exponent) {
    const int lower = (bits >> 3 & 7) == 0 ? 30 : 0;
    const float x = std::ldexp(kSignificands[bits & 3], exponent + (bits >> 6 & 1) - lower);
    const double rounded = round_to_format(x, find_format("bf16"), Rounding::kNearestEven);
    return static_cast<float>((bits >> 7 & 1) != 0 ? -rounded : rounded);
  };
  int64_t finite = 0, outputs = 0;
  uint32_t index = 0;
  for (const Exponents e :
       {Exponents{-64, -63}, {-75, -76}, {-128, 90}, {-130, 6}, {63, 63}, {64, 64}}) {
    for (const int64_t k : {2, 3, 4}) {
      const RandomStream random(22, RandomPurpose::kTest, index++);
      std::vector<float> a(kM * k), b(k * kN), start(kM * kN);
      uint64_t drawn = 0;
      for (float& x : a) x = power(random.bits(drawn++), e.a);
      for (float& x : b) x = power(random.bits(drawn++), e.b);
      for (float& x : start) {
        const uint64_t bits = random.bits(drawn++);
        x = (bits >> 9 & 1) != 0 ? 0 : power(bits, std::min(e.a + e.b, 126));
      }
      for (const char* name : {"arm_bfdot", "arm_bfdot_ebf", "avx512_bf16", "amx_bf16"}) {
        const auto multiplied = [&](const KernelSet& set) {
          std::vector<float> c = start;
          set.f32.gemm({.m = kM,
                        .n = kN,
                        .k = k,
                        .a = a.data(),
                        .lda = k,
                        .b = b.data(),
                        .ldb = kN,
                        .c = c.data(),
                        .ldc = kN,
                        .start_from_c = true,
                        .accumulator = &find_accumulator(name)});
          return c;
        };
        const std::vector<float> want = multiplied(scalar_kernels());
        for (const float x : want) finite += std::isfinite(x), ++outputs;
        for (const KernelSet* set : available_kernel_sets()) {
          CAPTURE(set->name);
          CAPTURE(name);
          CAPTURE(e.a);
          CAPTURE(k);
          CHECK(same_bits(multiplied(*set), want));
        }
      }
    }
  }
  CHECK(finite > outputs / 2);
}

// The largest float is 2^128 - 2^104, and odd: everything between it and 2^128 is rounded to it.
TEST_CASE("gemm accumulators: Arm's sums overflow from 2^128 on, and flush what is tiny") {
  constexpr float kMost = std::numeric_limits<float>::max(), kLeast = 0x1p-126f;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  struct Case {
    float start, a, b, second_a, second_b, want;
  };
  constexpr Case kCases[] = {
      {kMost, 0x1p103f, 1, 0, 0, kMost},           {kMost, 0x1.fep103f, 1, 0, 0, kMost},
      {kMost, 0x1p104f, 1, 0, 0, kInfinity},       {-kMost, 0x1p52f, -0x1p52f, 0, 0, -kInfinity},
      {-kMost, 0x1p52f, -0x1p51f, 0, 0, -kMost},   {0, 0x1p64f, 0x1p63f, 0x1p127f, 1, kInfinity},
      {-kMost, 0x1p64f, 0x1p64f, 0, 0, kInfinity}, {1.5f * kLeast, -kLeast, 1, 0, 0, 0},
      {-1.5f * kLeast, kLeast, 1, 0, 0, -0.0f},    {0, 0x1p-63f, 0x1p-64f, 0x1p-64f, 0x1p-63f, 0},
      {0.5f * kLeast, 1, kLeast, 0, 0, kLeast}};
  for (const Case& x : kCases) {
    const std::vector<float> a = {x.a, x.second_a}, b = {x.b, x.second_b};
    for (const KernelSet* set : available_kernel_sets()) {
      std::vector<float> c = {x.start};
      set->f32.gemm({.m = 1,
                     .n = 1,
                     .k = 2,
                     .a = a.data(),
                     .lda = 2,
                     .b = b.data(),
                     .ldb = 1,
                     .c = c.data(),
                     .ldc = 1,
                     .start_from_c = true,
                     .accumulator = &find_accumulator("arm_bfdot")});
      CAPTURE(set->name);
      CAPTURE(x.start);
      CAPTURE(x.a);
      CHECK(std::bit_cast<uint32_t>(c[0]) == std::bit_cast<uint32_t>(x.want));
    }
  }
}

// 2^-126 - 1.5 * 2^-151 is rounded to 2^-126 - 2^-150 in 24 bits with unbounded exponent, and so
// flushed; on the grid of FP32's subnormals it would be rounded up to 2^-126, which is not flushed.
TEST_CASE("gemm accumulators: tininess is judged after rounding with unbounded exponent") {
  const std::vector<float> a = {-0x1.8p-76f, 0}, b = {0x1p-75f, 0};
  for (const char* name : {"avx512_bf16", "amx_bf16"}) {
    for (const KernelSet* set : available_kernel_sets()) {
      // AMX adds its pairs from zero, where this product alone is tiny, and then adds them to the
      // sum.
      std::vector<float> c = {0x1p-126f};
      set->f32.gemm({.m = 1,
                     .n = 1,
                     .k = 2,
                     .a = a.data(),
                     .lda = 2,
                     .b = b.data(),
                     .ldb = 1,
                     .c = c.data(),
                     .ldc = 1,
                     .start_from_c = true,
                     .accumulator = &find_accumulator(name)});
      CAPTURE(name);
      CAPTURE(set->name);
      CHECK(std::bit_cast<uint32_t>(c[0]) ==
            std::bit_cast<uint32_t>(std::string_view(name) == "amx_bf16" ? 0x1p-126f : 0.0f));
    }
  }
}

}  // namespace lockstep
