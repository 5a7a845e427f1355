// Products with their roundings in one pass against the definition in four, bit for bit,
// statistics included.
#include <doctest/doctest.h>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/rounded_gemm.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/simd/products/gemm_plan.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

struct Problem {
  bool transpose_a, transpose_b;
  int64_t m, n, k;
};

struct Result {
  std::vector<float> c;
  TensorStats a_stats, b_stats, c_stats;
};

bool same_stats(const TensorStats& x, const TensorStats& y) {
  const auto bits = [](double v) { return std::bit_cast<uint64_t>(v); };
  return x.count == y.count && x.source_zero == y.source_zero && x.to_zero == y.to_zero &&
         x.to_subnormal == y.to_subnormal && x.to_infinity == y.to_infinity &&
         x.saturated == y.saturated && x.nan == y.nan && x.inexact == y.inexact &&
         bits(x.abs_max) == bits(y.abs_max) && bits(x.abs_min_nonzero) == bits(y.abs_min_nonzero) &&
         bits(x.sum_sq) == bits(y.sum_sq) && bits(x.round_err_sq) == bits(y.round_err_sq) &&
         x.bits_hash == y.bits_hash && x.exponent_histogram == y.exponent_histogram;
}

// How each array is rounded; `measured`: with statistics.
struct Roundings {
  QuantizeSpec a, b, c;
  bool measured = true;
};

Result multiply(const Problem& p, const char* accumulator, DataKind kind, const Roundings& how,
                void (*run)(const RoundedGemmArgs<float>&)) {
  const Format& fp32 = find_format("fp32");
  const auto a = make_data<float>(static_cast<size_t>(p.m * p.k), kind, fp32, 1);
  const auto b = make_data<float>(static_cast<size_t>(p.k * p.n), kind, fp32, 2);
  Result result;
  result.c.resize(static_cast<size_t>(p.m * p.n));
  RoundedGemmArgs<float> args;
  args.product = {.transpose_a = p.transpose_a,
                  .transpose_b = p.transpose_b,
                  .m = p.m,
                  .n = p.n,
                  .k = p.k,
                  .a = a.data(),
                  .lda = p.transpose_a ? p.m : p.k,
                  .b = b.data(),
                  .ldb = p.transpose_b ? p.k : p.n,
                  .c = result.c.data(),
                  .ldc = p.n,
                  .accumulator = &find_accumulator(accumulator)};
  args.a = {how.a, how.measured ? &result.a_stats : nullptr};
  args.b = {how.b, how.measured ? &result.b_stats : nullptr};
  args.c = {how.c, how.measured ? &result.c_stats : nullptr};
  run(args);
  return result;
}

void in_passes(const RoundedGemmArgs<float>& args) {
  const Kernels<float>& kernels = active_kernels().f32;
  rounded_gemm_in_passes(args, kernels.gemm, kernels.quantize);
}

// Restores the kernel set in use.
class KernelSetGuard {
 public:
  explicit KernelSetGuard(const KernelSet& set) : before_(active_kernels().name) {
    select_kernels(set.name);
  }
  ~KernelSetGuard() { select_kernels(before_); }

 private:
  std::string before_;
};

void compare_with_passes(const Problem& p, const char* accumulator, DataKind kind,
                         const Roundings& how) {
  const auto in_one = [](const RoundedGemmArgs<float>& args) {
    rounded_gemm(active_kernels().f32, args);
  };
  const Result want = multiply(p, accumulator, kind, how, in_passes);
  const Result got = multiply(p, accumulator, kind, how, in_one);
  CAPTURE(active_kernels().name);
  CAPTURE(accumulator);
  CAPTURE(static_cast<int>(kind));
  CAPTURE(p.m);
  CAPTURE(p.n);
  CAPTURE(p.k);
  CAPTURE(p.transpose_a);
  CAPTURE(p.transpose_b);
  CAPTURE(how.measured);
  REQUIRE(same_bits(got.c, want.c));
  REQUIRE(same_stats(got.a_stats, want.a_stats));
  REQUIRE(same_stats(got.b_stats, want.b_stats));
  REQUIRE(same_stats(got.c_stats, want.c_stats));
}

QuantizeSpec to(const char* format, Rounding rounding = Rounding::kNearestEven) {
  QuantizeSpec spec{.format = &find_format(format), .rounding = rounding};
  if (rounding == Rounding::kStochastic) spec.key = {.seed = 7, .stream = 1, .site = 2, .step = 3};
  return spec;
}

// Whole blocks of 4096, parts of one, rows that share blocks; more than one block of k, of rows and
// of columns.
constexpr Problem kProblems[] = {
    {false, false, 1, 1, 1},      {false, false, 5, 33, 31},   {true, false, 64, 128, 64},
    {false, true, 64, 64, 128},   {true, true, 30, 70, 201},   {false, false, 20, 45, 1700},
    {false, true, 20, 45, 1700},  {true, false, 20, 45, 1700}, {false, false, 16, 4500, 9},
    {false, false, 2100, 40, 20}, {true, false, 2100, 7, 20},  {false, true, 40, 2100, 33},
};

}  // namespace

TEST_CASE("rounded gemm: one pass gives the bits and the statistics of four") {
  for (const KernelSet* set : available_kernel_sets()) {
    const KernelSetGuard guard(*set);
    for (const DataKind kind : {DataKind::kSmall, DataKind::kWide, DataKind::kSpecial}) {
      for (const Problem& p : kProblems) {
        if (set == &scalar_kernels() && p.m * p.n * p.k > 100000) continue;
        compare_with_passes(p, "fp32_fused", kind, {to("fp16"), to("fp16"), to("fp16")});
        compare_with_passes(p, "fp32_fused", kind, {to("bf16"), to("tf32"), to("bf16"), false});
      }
    }
  }
}

TEST_CASE("rounded gemm: few rows, many columns, several blocks of k") {
  for (const KernelSet* set : available_kernel_sets()) {
    if (set == &scalar_kernels()) continue;  // it has no such blocks
    const KernelSetGuard guard(*set);
    compare_with_passes({false, false, 16, 2100, 800}, "fp32_fused", DataKind::kWide,
                        {to("fp16"), to("fp16"), to("fp16")});
  }
}

TEST_CASE("rounded gemm: every way of rounding, and unrounded operands") {
  QuantizeSpec observed = to("fp16");
  observed.measure_only = true;
  const Roundings cases[] = {
      {to("fp8_e4m3", Rounding::kStochastic), to("fp16", Rounding::kStochastic), {}},
      {to("fp16", Rounding::kTowardZero), to("e6m9", Rounding::kNearestAway), to("fp8_e5m2")},
      {{}, to("fp16"), {}},
      {to("fp16"), {}, to("fp16")},
      {observed, observed, observed},
  };
  for (const KernelSet* set : available_kernel_sets()) {
    const KernelSetGuard guard(*set);
    for (const Roundings& how : cases) {
      for (const Problem& p : {Problem{false, false, 20, 45, 300}, Problem{true, true, 33, 65, 130},
                               Problem{false, false, 3, 300, 40}}) {
        compare_with_passes(p, "fp32_fused", DataKind::kSpecial, how);
      }
    }
  }
}

TEST_CASE("rounded gemm: other accumulators") {
  for (const KernelSet* set : available_kernel_sets()) {
    const KernelSetGuard guard(*set);
    for (const char* accumulator : {"fp16", "bf16", "fp64_fused", "fp32_unfused", "fp16_unfused",
                                    "fp32_kahan", "fp32_pairwise"}) {
      for (const int64_t k : {int64_t{300}, 2 * kBlockK + 1}) {
        compare_with_passes({false, false, 20, 45, k}, accumulator, DataKind::kWide,
                            {to("fp16"), to("fp16"), to("fp16")});
      }
    }
  }
}

TEST_CASE("rounded gemm: bits do not depend on the number of threads") {
  const Problem p{false, false, 128, 300, 900};
  const Roundings how{to("fp16"), to("fp16"), to("fp16")};
  std::vector<Result> results;
  for (const int threads : {1, 2, 3}) {
    const ThreadCountGuard guard(threads);
    results.push_back(multiply(
        p, "fp32_fused", DataKind::kWide, how,
        [](const RoundedGemmArgs<float>& args) { rounded_gemm(active_kernels().f32, args); }));
  }
  for (const Result& result : results) {
    CHECK(same_bits(result.c, results[0].c));
    CHECK(same_stats(result.a_stats, results[0].a_stats));
    CHECK(same_stats(result.b_stats, results[0].b_stats));
    CHECK(same_stats(result.c_stats, results[0].c_stats));
  }
}

}  // namespace lockstep
