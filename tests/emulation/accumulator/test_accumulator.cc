// The accumulator table, and one step of each row against exact arithmetic.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "emulation/accumulator/accumulator.h"
#include "emulation/accumulator/accumulator_picture.h"
#include "emulation/accumulator/fast_round.h"
#include "emulation/format/oracle.h"
#include "emulation/kernels/active_kernels.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

// Inputs an accumulator may be given: FP32 numbers, except that FP64 takes its own.
const Format& input_format(const Accumulator& accumulator) {
  return find_format(accumulator.format->is_fp64() ? "fp64" : "fp32");
}

}  // namespace

TEST_CASE("accumulators: names are unique and find their row") {
  std::set<std::string> names;
  for (const Accumulator& row : accumulators()) {
    CHECK(names.insert(row.name).second);
    CHECK(&find_accumulator(row.name) == &row);
    CHECK(row.format != nullptr);
    CHECK(!row.help.empty());
    CHECK(!row.source.empty());
  }
  for (const char* name : {"fp64_fused", "fp32_fused", "fp16", "bf16"})
    CHECK(names.count(name) == 1);
  CHECK_THROWS_WITH_AS(find_accumulator("fp32_fussed"), doctest::Contains("fp32_fused"),
                       InputError);
}

TEST_CASE(
    "accumulators: drawings show the row, and differ between rows with different arithmetic") {
  const auto lines_of = [](const Accumulator& row) {
    return split(accumulator_picture(row), '\n');
  };
  std::map<std::string, const Accumulator*> drawn;
  for (const Accumulator& row : accumulators()) {
    CAPTURE(row.name);
    const std::string picture = accumulator_picture(row);
    CHECK(picture.ends_with("\n"));
    for (const std::string& line : lines_of(row)) {
      CHECK(line.size() <= size_t{kPictureWidth});
      CHECK(!line.ends_with(" "));
    }
    const Accumulator& first = *drawn.emplace(picture, &row).first->second;
    CHECK(first.kind == row.kind);
    CHECK(first.register_format == row.register_format);
    if (row.kind != AccumulatorKind::kAlignedBlocks) continue;
    const BlockSpec &x = first.block, &y = row.block;
    CHECK(x.length == y.length);
    CHECK(x.fraction_bits == y.fraction_bits);
    CHECK(x.output == y.output);
    CHECK(x.exponent_floor == y.exponent_floor);
    CHECK(x.promotion_interval == y.promotion_interval);
    CHECK(x.order == y.order);
    // To scale: the sum has F fraction bits, and enough bits before the point for L + 1 terms
    // below 4.
    for (const std::string& line : lines_of(row)) {
      if (line.find("sum, exact") == std::string::npos) continue;
      const std::string bits = line.substr(0, line.find('|'));
      CHECK(std::count(bits.begin(), bits.end(), 'f') == y.fraction_bits);
      const auto integers = std::count(bits.begin(), bits.end(), 'i');
      CHECK((int64_t{1} << integers) >= 4 * (y.length + 1));
      CHECK((int64_t{1} << integers) < 8 * (y.length + 1));
    }
  }
  CHECK(drawn.size() > 20);
  // Switches are drawn too.
  for (const char* name : {"hopper_bf16+mmasim_floor", "hopper_bf16+no_floor",
                           "hopper_bf16+mmasim_zero", "hopper_bf16+count_zero_products",
                           "hopper_bf16+negative_zero", "hopper_fp8_mma+one_block"}) {
    CHECK(!drawn.contains(accumulator_picture(find_accumulator(name))));
  }
}

TEST_CASE("accumulators: fused chains equal the oracle's, bit for bit") {
  for (const Accumulator& accumulator : accumulators()) {
    if (accumulator.kind != AccumulatorKind::kFusedChain) continue;
    const Format& inputs = input_format(accumulator);
    for (const DataKind kind : kAllData) {
      for (uint32_t trial = 0; trial < 40; ++trial) {
        const auto a = make_data<double>(50, kind, inputs, 3 * trial);
        const auto b = make_data<double>(50, kind, inputs, 3 * trial + 1);
        const double start =
            make_data<double>(1, DataKind::kWide, *accumulator.format, 3 * trial + 2)[0];
        double acc = start;
        for (size_t k = 0; k < a.size(); ++k) acc = accumulate_step(accumulator, acc, a[k], b[k]);
        const double want = oracle_dot(a, b, start, *accumulator.format);
        CAPTURE(accumulator.name);
        CAPTURE(static_cast<int>(kind));
        REQUIRE(std::isnan(acc) == std::isnan(want));
        if (!std::isnan(want))
          REQUIRE(std::bit_cast<uint64_t>(acc) == std::bit_cast<uint64_t>(want));
      }
    }
  }
}

TEST_CASE("accumulators: a sum without products equals a fused step with factor 1") {
  for (const Accumulator& accumulator : accumulators()) {
    if (accumulator.kind != AccumulatorKind::kFusedChain) continue;
    const Format& inputs = input_format(accumulator);
    for (const DataKind kind : kAllData) {
      const auto x = make_data<double>(500, kind, inputs, 1);
      double sum = 0, chain = 0;
      for (const double v : x) {
        sum = accumulate_add(accumulator, sum, v);
        chain = accumulate_step(accumulator, chain, v, 1);
        REQUIRE(std::bit_cast<uint64_t>(sum) == std::bit_cast<uint64_t>(chain));
      }
    }
  }
}

TEST_CASE("accumulators: fused FP32 followed by a rounding is not the FP16 step") {
  const Accumulator& fp16 = find_accumulator("fp16");
  const auto wrong_step = [&](double acc, double a, double b) {
    const float fused =
        std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(acc));
    return round_to_format(fused, *fp16.format, Rounding::kNearestEven);
  };
  // 1141 * 1838 = 2^21 + 6, so the product is 2^-11 + 6 * 2^-32: just above half way between 1 and
  // its neighbour. FP32 drops the rest, and the tie then goes down, to even.
  const double a = 1141 * 0x1p-10, b = 1838 * 0x1p-22;
  CHECK(accumulate_step(fp16, 1, a, b) == 1 + 0x1p-10);
  CHECK(wrong_step(1, a, b) == 1);
  int differences = 0;
  constexpr size_t kSteps = 200000;
  const auto x = make_data<double>(kSteps, DataKind::kSmall, *fp16.format, 1);
  const auto y = make_data<double>(kSteps, DataKind::kSmall, *fp16.format, 2);
  double acc = 0;
  for (size_t i = 0; i < kSteps; ++i) {
    const double next = accumulate_step(fp16, acc, x[i], y[i]);
    differences += next != wrong_step(acc, x[i], y[i]);
    acc = i % 64 == 63 ? 0 : next;
  }
  CHECK(differences > 0);
  MESSAGE("steps that double rounding changes: ", differences, " of ", kSteps);
}

TEST_CASE("accumulators: the sum is exact, not merely a double") {
  // 1 + 2^-10 + 2^-11 is half way to the next FP16 number, and 1 + 2^-10 is odd. The product is
  // 2^-57 short of 2^-11: rounding the sum to double first would lose that and go up, to even.
  const double acc = 1 + 0x1p-10;
  const float a = 0x1p-11f * (1 + 0x1p-23f), b = 1 - 0x1p-23f;
  const Accumulator& fp16 = find_accumulator("fp16");
  CHECK(round_to_format(acc + double(a) * b, *fp16.format, Rounding::kNearestEven) == 1 + 0x1p-9);
  CHECK(accumulate_step(fp16, acc, a, b) == acc);
  for (const KernelSet* set : available_kernel_sets()) {
    for (const bool with_events : {false, true}) {
      float c = static_cast<float>(acc);
      uint8_t events = 0;
      set->f32.gemm({.m = 1,
                     .n = 1,
                     .k = 1,
                     .a = &a,
                     .lda = 1,
                     .b = &b,
                     .ldb = 1,
                     .c = &c,
                     .ldc = 1,
                     .start_from_c = true,
                     .accumulator = &fp16,
                     .events = with_events ? &events : nullptr});
      CAPTURE(set->name);
      CHECK(c == acc);
      CHECK(int(events) == (with_events ? kStepInexact : 0));
    }
  }
}

TEST_CASE("accumulators: events") {
  const Accumulator& fp16 = find_accumulator("fp16");
  const auto events_of = [&](double acc, double a, double b) {
    uint8_t events = 0;
    accumulate_step(fp16, acc, a, b, &events);
    return int(events);
  };
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(events_of(1, 1, 1) == 0);
  CHECK(events_of(1, 0x1p-11, 1) == kStepInexact);
  CHECK(events_of(0, 0x1p-13, 0x1p-13) == (kStepInexact | kStepToZero));
  CHECK(events_of(1, -1, 1) == 0);  // an exact zero
  CHECK(events_of(65504, 16, 1) == (kStepInexact | kStepToInfinity));
  CHECK(events_of(65504, 15.9921875, 1) == kStepInexact);
  CHECK(events_of(infinity, 1, 1) == 0);  // not caused by this step
  CHECK(events_of(0, infinity, 1) == 0);
  CHECK(events_of(infinity, -infinity, 1) == kStepNan);
  CHECK(events_of(0, infinity, 0) == kStepNan);
  const Accumulator& fp64 = find_accumulator("fp64_fused");
  for (const double tail : {0.0, 0x1p-60}) {
    uint8_t events = 0;
    accumulate_step(fp64, 1, 1, tail, &events);
    CHECK(int(events) == (tail != 0 ? kStepInexact : 0));
    events = 0;
    // (1 + 2^-30)^2 - (1 + 2^-29) = 2^-60: exact although the product is not a double.
    accumulate_step(fp64, -(1 + 0x1p-29) - tail, 1 + 0x1p-30, 1 + 0x1p-30, &events);
    CHECK(int(events) == 0);
  }
}

TEST_CASE("fast_round: equals round_to_format at every code point, midpoint and their neighbours") {
  for (const char* name :
       {"fp32", "bf16", "fp16", "fp8_e5m2", "tf32", "e5m2", "e4m3", "e3m2", "e8m1"}) {
    const Format& format = find_format(name);
    const FastRound round(format);
    const double infinity = std::numeric_limits<double>::infinity();
    std::vector<double> points = {0, infinity, format.max_finite, std::nan(""), 0x1p900, 0x1p-900};
    const RandomStream random(1, RandomPurpose::kTest, 9);
    for (uint64_t i = 0; i < 4000; ++i) {
      const int exponent = static_cast<int>(random.bits(2 * i) % 320) - 170;
      const double x = round_to_format(std::ldexp(1 + random.uniform(2 * i + 1), exponent), format,
                                       Rounding::kTowardZero);
      if (!std::isfinite(x)) continue;
      points.push_back(x);
      points.push_back(x + ulp(x, format) / 2);
    }
    for (const double p : points) {
      for (const double x : {std::nextafter(p, 0.0), p, std::nextafter(p, infinity)}) {
        for (const double signed_x : {x, -x}) {
          const double want =
              canonical_nan(round_to_format(signed_x, format, Rounding::kNearestEven));
          REQUIRE(std::bit_cast<uint64_t>(round(signed_x)) == std::bit_cast<uint64_t>(want));
        }
      }
    }
  }
}

}  // namespace lockstep
