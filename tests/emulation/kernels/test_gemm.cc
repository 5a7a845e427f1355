// Every gemm against the scalar loops, bit for bit, events included; the scalar loops against
// accumulate_step.
#include <doctest/doctest.h>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/simd/products/gemm_plan.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

struct Problem {
  bool transpose_a, transpose_b, start_from_c, with_events;
  int64_t m, n, k;
};

template <typename T>
struct Result {
  std::vector<T> c;
  std::vector<uint8_t> events;
};

template <typename T>
Result<T> multiply(const KernelSet& set, const Problem& p, const Accumulator& accumulator,
                   DataKind kind, const Format& inputs) {
  const auto a = make_data<T>(static_cast<size_t>(p.m * p.k), kind, inputs, 1);
  const auto b = make_data<T>(static_cast<size_t>(p.k * p.n), kind, inputs, 2);
  const Format& sum_format =
      sizeof(T) == 4 && accumulator.format->is_fp64() ? find_format("fp32") : *accumulator.format;
  const DataKind start = kind == DataKind::kSpecial ? kind : DataKind::kSmall;
  // One column more than the matrix has: it must not change.
  Result<T> result{make_data<T>(static_cast<size_t>(p.m * (p.n + 1)), start, sum_format, 3), {}};
  if (p.with_events) result.events.assign(static_cast<size_t>(p.m * p.n), 0);
  GemmArgs<T> args{.transpose_a = p.transpose_a,
                   .transpose_b = p.transpose_b,
                   .m = p.m,
                   .n = p.n,
                   .k = p.k,
                   .a = a.data(),
                   .lda = p.transpose_a ? p.m : p.k,
                   .b = b.data(),
                   .ldb = p.transpose_b ? p.k : p.n,
                   .c = result.c.data(),
                   .ldc = p.n + 1,
                   .start_from_c = p.start_from_c,
                   .accumulator = &accumulator,
                   .events = p.with_events ? result.events.data() : nullptr};
  set.of<T>().gemm(args);
  return result;
}

// Sizes around every tile edge, each a few times with different flags.
std::vector<Problem> problems() {
  const int64_t sizes[] = {1, 2, 7, 14, 31, 32, 33, 65};
  std::vector<Problem> list;
  uint32_t count = 0;
  for (const int64_t m : sizes) {
    for (const int64_t n : sizes) {
      const int64_t k = sizes[(count * 5 + 3) % 8];
      list.push_back(
          {(count & 1) != 0, (count & 2) != 0, (count & 4) != 0, (count & 8) != 0, m, n, k});
      ++count;
    }
  }
  list.push_back({false, false, false, true, 3, 5, 0});
  list.push_back({false, false, true, true, 3, 40, 600});  // three blocks of k
  list.push_back({true, true, false, true, 128, 65, 300});
  list.push_back({false, false, true, true, 17, 2090, 2});  // few rows, many columns
  return list;
}

template <typename T>
void compare_sets(const Accumulator& accumulator, const Format& inputs) {
  for (const DataKind kind : kAllData) {
    for (Problem p : problems()) {
      p.with_events = p.with_events && accumulator.adds();
      const Result<T> want = multiply<T>(scalar_kernels(), p, accumulator, kind, inputs);
      for (const KernelSet* set : available_kernel_sets()) {
        const Result<T> got = multiply<T>(*set, p, accumulator, kind, inputs);
        CAPTURE(set->name);
        CAPTURE(accumulator.name);
        CAPTURE(inputs.name);
        CAPTURE(static_cast<int>(kind));
        CAPTURE(p.m);
        CAPTURE(p.n);
        CAPTURE(p.k);
        CAPTURE(p.transpose_a);
        CAPTURE(p.transpose_b);
        CAPTURE(p.start_from_c);
        CAPTURE(p.with_events);
        REQUIRE(same_bits(got.c, want.c));
        REQUIRE(same_bits(got.events, want.events));
      }
    }
  }
}

}  // namespace

// Tensor cores and CPU units: test_gemm_accumulators.cc.
TEST_CASE("gemm: every kernel set gives the scalar bits" * doctest::test_suite("slow")) {
  for (const Accumulator& accumulator : accumulators()) {
    if (!accumulator.operands.empty()) continue;
    compare_sets<float>(accumulator, find_format("fp32"));
    // Inputs whose products are exact in float use a shorter path to a narrow sum.
    if (accumulator.format->precision >= 24) continue;
    for (const char* inputs : {"fp16", "bf16"}) {
      compare_sets<float>(accumulator, find_format(inputs));
    }
  }
  compare_sets<double>(find_accumulator("fp64_fused"), find_format("fp64"));
}

TEST_CASE("gemm: scalar is the chain of accumulate_step") {
  const Problem p{false, true, true, true, 5, 4, 40};
  for (const Accumulator& accumulator : accumulators()) {
    if (!accumulator.adds()) continue;
    for (const DataKind kind : kAllData) {
      const Format& inputs = find_format("fp32");
      const auto a = make_data<float>(5 * 40, kind, inputs, 1);
      const auto b = make_data<float>(40 * 4, kind, inputs, 2);
      Problem start = p;
      start.k = 0;  // leaves the starting values
      const auto c = multiply<float>(scalar_kernels(), start, accumulator, kind, inputs).c;
      const auto got = multiply<float>(scalar_kernels(), p, accumulator, kind, inputs);
      for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
          double acc = c[static_cast<size_t>(i * (p.n + 1) + j)];
          uint8_t events = 0;
          for (int64_t k = 0; k < p.k; ++k) {
            acc = accumulate_step(accumulator, acc, a[static_cast<size_t>(i * p.k + k)],
                                  b[static_cast<size_t>(j * p.k + k)], &events);
          }
          const float want = static_cast<float>(acc);
          const float have = got.c[static_cast<size_t>(i * (p.n + 1) + j)];
          CAPTURE(accumulator.name);
          CAPTURE(static_cast<int>(kind));
          REQUIRE(std::bit_cast<uint32_t>(have) == std::bit_cast<uint32_t>(want));
          REQUIRE(int(got.events[static_cast<size_t>(i * p.n + j)]) == int(events));
        }
      }
    }
  }
}

TEST_CASE("gemm: bits do not depend on the number of threads") {
  for (const Accumulator& accumulator : accumulators()) {
    if (accumulator.operands.size() > 1) continue;  // need formats, which a Problem does not have
    const bool has_events =
        accumulator.adds() || accumulator.kind == AccumulatorKind::kAlignedBlocks;
    const Problem p{false, false, false, has_events, 128, 300, 64};
    const Format& inputs =
        accumulator.operands.empty() ? find_format("fp16") : *accumulator.operands[0];
    std::vector<Result<float>> results;
    for (const int threads : {1, 2, 3}) {
      const ThreadCountGuard guard(threads);
      results.push_back(multiply<float>(active_kernels(), p, accumulator, DataKind::kWide, inputs));
    }
    for (const auto& result : results) {
      CHECK(same_bits(result.c, results[0].c));
      CHECK(same_bits(result.events, results[0].events));
    }
  }
}

// Kahan's and the pairwise sum need all of k at once; then a block has fewer rows and columns.
TEST_CASE("gemm: sums that cannot be cut, in several blocks of rows and of columns") {
  constexpr int64_t kLines = 50, kK = kWholeDepthElements / kLines + 2001;
  // Values repeat: so many random ones would take longer than the products.
  const auto pattern = make_data<float>(9973, DataKind::kWide, find_format("fp32"), 1);
  std::vector<float> few(2 * kK), many(kLines * kK);
  for (size_t i = 0; i < few.size(); ++i) few[i] = pattern[(i * 5 + 3) % pattern.size()];
  for (size_t i = 0; i < many.size(); ++i) many[i] = pattern[i % pattern.size()];
  for (const char* name : {"fp32_kahan", "fp32_pairwise"}) {
    for (const bool many_rows : {false, true}) {
      const auto multiplied = [&](const KernelSet& set) {
        std::vector<float> c(2 * kLines, 0.5f);
        set.f32.gemm({.transpose_b = true,
                      .m = many_rows ? kLines : 2,
                      .n = many_rows ? 2 : kLines,
                      .k = kK,
                      .a = many_rows ? many.data() : few.data(),
                      .lda = kK,
                      .b = many_rows ? few.data() : many.data(),
                      .ldb = kK,
                      .c = c.data(),
                      .ldc = many_rows ? 2 : kLines,
                      .start_from_c = true,
                      .accumulator = &find_accumulator(name)});
        return c;
      };
      const std::vector<float> want = multiplied(scalar_kernels());
      for (const KernelSet* set : available_kernel_sets()) {
        CAPTURE(set->name);
        CAPTURE(name);
        CAPTURE(many_rows);
        CHECK(same_bits(multiplied(*set), want));
      }
    }
  }
}

TEST_CASE("gemm: sums that start from numbers of more bits than their format") {
  constexpr int64_t kRows = 13, kColumns = 70;
  for (const Accumulator& accumulator : accumulators()) {
    if (!accumulator.operands.empty() || accumulator.format->is_fp64()) continue;
    CAPTURE(accumulator.name);
    for (const int64_t k : {1, 3}) {
      const Format& fp16 = find_format("fp16");
      const auto a = make_data<float>(kRows * k, DataKind::kSmall, fp16, 1);
      const auto b = make_data<float>(k * kColumns, DataKind::kSmall, fp16, 2);
      for (const DataKind kind : {DataKind::kSmall, DataKind::kSpecial, DataKind::kWide}) {
        const auto start = make_data<float>(kRows * kColumns, kind, find_format("fp32"), 3);
        const auto multiplied = [&](const KernelSet& set) {
          std::vector<float> c = start;
          set.f32.gemm({.m = kRows,
                        .n = kColumns,
                        .k = k,
                        .a = a.data(),
                        .lda = k,
                        .b = b.data(),
                        .ldb = kColumns,
                        .c = c.data(),
                        .ldc = kColumns,
                        .start_from_c = true,
                        .accumulator = &accumulator});
          return c;
        };
        const std::vector<float> want = multiplied(scalar_kernels());
        for (const KernelSet* set : available_kernel_sets()) {
          CAPTURE(set->name);
          CHECK(same_bits(multiplied(*set), want));
        }
      }
    }
  }
  // 1 + 2^-11 is the middle between two FP16 numbers.
  const float factor = 0x1p-12f;
  for (const KernelSet* set : available_kernel_sets()) {
    CAPTURE(set->name);
    float c = 1 + 0x1p-11f;
    set->f32.gemm({.m = 1,
                   .n = 1,
                   .k = 1,
                   .a = &factor,
                   .lda = 1,
                   .b = &factor,
                   .ldb = 1,
                   .c = &c,
                   .ldc = 1,
                   .start_from_c = true,
                   .accumulator = &find_accumulator("fp16_unfused")});
    CHECK(c == 1 + 0x1p-10f);
  }
}

TEST_CASE("gemm: few rows, many columns, several blocks of k") {
  const Problem p{true, false, false, false, 20, 2100, 800};
  const Accumulator& accumulator = find_accumulator("fp32_fused");
  const Format& inputs = find_format("fp32");
  const auto want = multiply<float>(scalar_kernels(), p, accumulator, DataKind::kWide, inputs);
  for (const KernelSet* set : available_kernel_sets()) {
    for (const int threads : {1, 2}) {
      const ThreadCountGuard guard(threads);
      const auto got = multiply<float>(*set, p, accumulator, DataKind::kWide, inputs);
      CHECK(same_bits(got.c, want.c));
    }
  }
}

TEST_CASE("gemm: products that keep B have the bits of separate products") {
  const ThreadCountGuard guard(3);
  // One panel of rows, several; several blocks of k; few rows with blocks of few columns.
  const Problem shapes[] = {
      {false, true, false, false, 16, 100, 70},   {false, false, false, false, 16, 70, 1700},
      {false, false, false, false, 3, 65, 33},    {true, true, false, true, 9, 33, 800},
      {false, false, false, false, 2, 2090, 800},
  };
  for (const char* name : {"fp32_fused", "fp32_unfused", "hopper_fp16", "fp16", "arm_bfdot"}) {
    const Accumulator& accumulator = find_accumulator(name);
    const Format& inputs = find_format(std::string_view(name) == "arm_bfdot" ? "bf16" : "fp16");
    for (const Problem& p : shapes) {
      const auto b = make_data<float>(static_cast<size_t>(p.k * p.n), DataKind::kSmall, inputs, 2);
      for (const KernelSet* set : available_kernel_sets()) {
        KeptFactor kept;
        for (const uint32_t index : {1u, 3u}) {
          const auto a =
              make_data<float>(static_cast<size_t>(p.m * p.k), DataKind::kSmall, inputs, index);
          const auto product = [&](KeptFactor* kept_b) {
            std::vector<float> c(static_cast<size_t>(p.m * p.n));
            set->f32.gemm({.transpose_a = p.transpose_a,
                           .transpose_b = p.transpose_b,
                           .m = p.m,
                           .n = p.n,
                           .k = p.k,
                           .a = a.data(),
                           .lda = p.transpose_a ? p.m : p.k,
                           .b = b.data(),
                           .ldb = p.transpose_b ? p.k : p.n,
                           .c = c.data(),
                           .ldc = p.n,
                           .accumulator = &accumulator,
                           .kept_b = kept_b});
            return c;
          };
          CAPTURE(set->name);
          CAPTURE(name);
          CAPTURE(p.n);
          CAPTURE(index);
          CHECK(same_bits(product(&kept), product(nullptr)));
        }
      }
    }
  }
}

TEST_CASE("gemm: columns beyond the matrix do not change") {
  const Problem p{false, false, false, false, 7, 33, 65};
  const Accumulator& accumulator = find_accumulator("fp32_fused");
  const Format& fp32 = find_format("fp32");
  Problem start = p;
  start.k = 0;
  start.start_from_c = true;
  const auto before = multiply<float>(scalar_kernels(), start, accumulator, DataKind::kSmall, fp32);
  for (const KernelSet* set : available_kernel_sets()) {
    const auto after = multiply<float>(*set, p, accumulator, DataKind::kSmall, fp32);
    for (int64_t i = 0; i < p.m; ++i) {
      const size_t last = static_cast<size_t>(i * (p.n + 1) + p.n);
      CHECK(after.c[last] == before.c[last]);
      CHECK(after.c[last - 1] != before.c[last - 1]);
    }
  }
}

TEST_SUITE("slow") {
  TEST_CASE("gemm: one narrow step from every code, bits and events") {
    // a runs over all 2^16 codes of the format, infinities and NaN included; b and the sum before
    // the step are drawn from its whole range.
    constexpr int64_t kCodes = 1 << 16, kColumns = 128;
    for (const char* name : {"fp16", "bf16", "fp16_unfused"}) {
      const Accumulator& accumulator = find_accumulator(name);
      const Format& format = *accumulator.format;
      std::vector<float> codes(kCodes);
      for (int64_t i = 0; i < kCodes; ++i) {
        codes[static_cast<size_t>(i)] =
            static_cast<float>(decode(static_cast<uint64_t>(i), format));
      }
      const RandomStream random(5, RandomPurpose::kTest);
      std::vector<float> b, start;
      for (uint64_t i = 0; i < kColumns; ++i) b.push_back(codes[random.bits(i) >> 16]);
      for (uint64_t i = 0; i < kCodes * kColumns; ++i) {
        start.push_back(codes[random.bits(kColumns + i) >> 16]);
      }
      const auto step = [&](const KernelSet& set) {
        Result<float> r{start, std::vector<uint8_t>(start.size())};
        set.f32.gemm({.m = kCodes,
                      .n = kColumns,
                      .k = 1,
                      .a = codes.data(),
                      .lda = 1,
                      .b = b.data(),
                      .ldb = kColumns,
                      .c = r.c.data(),
                      .ldc = kColumns,
                      .start_from_c = true,
                      .accumulator = &accumulator,
                      .events = r.events.data()});
        return r;
      };
      const Result<float> want = step(scalar_kernels());
      for (const KernelSet* set : available_kernel_sets()) {
        const Result<float> got = step(*set);
        CAPTURE(name);
        CAPTURE(set->name);
        CHECK(same_bits(got.c, want.c));
        CHECK(same_bits(got.events, want.events));
      }
    }
  }
}

}  // namespace lockstep
