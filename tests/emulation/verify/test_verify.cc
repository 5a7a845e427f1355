// The comparison of units with their models: it finds every difference with any number of threads,
// and finds none on this machine's units.
#include <doctest/doctest.h>

#include <bit>
#include <limits>
#include <string>

#include "emulation/accumulator/dot.h"
#include "emulation/kernels/cpu/instructions.h"
#include "emulation/kernels/cpu_unit.h"
#include "emulation/verify/bit_comparison.h"
#include "emulation/verify/cpu_units.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

// x + 1 in FP32 as the unit, compared with `model`.
BitComparison plus_one(std::function<float(float)> model) {
  const Format& fp32 = find_format("fp32");
  BitComparison comparison;
  comparison.result = &fp32;
  comparison.fields = {{"x", &fp32}};
  comparison.edges = {{edge_values(fp32)}};
  comparison.draw = [](CaseRandom& random, uint32_t* words) { words[0] = random.bits(); };
  const auto batch = [](std::function<float(float)> f) {
    return [f](const CaseBatch& cases, uint32_t* results) {
      for (int64_t j = 0; j < cases.count; ++j) {
        results[j] = std::bit_cast<uint32_t>(f(std::bit_cast<float>(cases.operand(0)[j])));
      }
    };
  };
  comparison.unit = batch([](float x) { return x + 1; });
  comparison.model = batch(std::move(model));
  return comparison;
}

// VDPBF16PS, compared with an accumulator's dot product of two factors.
UnitResult compare_pair_dot(const char* accumulator, uint64_t cases) {
  const Format &bf16 = find_format("bf16"), &fp32 = find_format("fp32");
  const Accumulator& model = find_accumulator(accumulator);
  BitComparison comparison;
  comparison.result = &fp32;
  comparison.fields = {{"c", &fp32}, {"a", &bf16}, {"b", &bf16}};
  comparison.edges = {{edge_values(fp32), few_edge_values(bf16), few_edge_values(bf16)}};
  comparison.draw = [](CaseRandom& random, uint32_t* words) {
    words[0] = random.bits();
    words[1] = random.bits() >> 16;
    words[2] = random.bits() >> 16;
  };
  // The odd element is 1 * 1: both of the instruction's steps take part.
  constexpr uint32_t kOne = 0x3f80;
  comparison.unit = [](const CaseBatch& cases, uint32_t* results) {
    for (int64_t j = 0; j < cases.count; ++j) {
      const uint32_t a = cases.operand(1)[j] | kOne << 16, b = cases.operand(2)[j] | kOne << 16;
      const auto c = std::bit_cast<float>(cases.operand(0)[j]);
      float y;
      cpu::vdpbf16ps(&a, &b, &c, &y, 1);
      results[j] = std::bit_cast<uint32_t>(y);
    }
  };
  comparison.model = [&](const CaseBatch& cases, uint32_t* results) {
    for (int64_t j = 0; j < cases.count; ++j) {
      const float a[] = {std::bit_cast<float>(cases.operand(1)[j] << 16), 1};
      const float b[] = {std::bit_cast<float>(cases.operand(2)[j] << 16), 1};
      const auto c = std::bit_cast<float>(cases.operand(0)[j]);
      const auto y =
          static_cast<float>(accumulate_dot(model, DotOperands<float>{a, b, 2, &bf16, &bf16}, c));
      results[j] = std::bit_cast<uint32_t>(y);
    }
  };
  VerifyOptions options;
  options.cases = cases;
  return compare_bits(comparison, options);
}

}  // namespace

TEST_CASE("verify: equal functions have no mismatch, NaN payloads do not count") {
  VerifyOptions options;
  options.cases = 20'000;
  const float other_nan = std::bit_cast<float>(0xffc01234u);
  const UnitResult result =
      compare_bits(plus_one([&](float x) { return x != x ? other_nan : x + 1; }), options);
  CHECK(result.edge_cases == edge_values(find_format("fp32")).size());
  CHECK(result.random_cases == options.cases);
  CHECK(result.cases() == result.edge_cases + result.random_cases);
  CHECK(result.mismatches == 0);
  CHECK(result.first_mismatch.empty());
}

TEST_CASE("verify: a wrong model is found, its first mismatch shown") {
  VerifyOptions options;
  options.cases = 20'000;
  // Wrong only for 1, which is an edge case.
  const UnitResult one =
      compare_bits(plus_one([](float x) { return x == 1 ? 3 : x + 1; }), options);
  CHECK(one.mismatches == 1);
  CHECK(one.first_mismatch == "x=0x3f800000: unit 0x40000000, model 0x40400000");
  // -0 + 1 is 1; a NaN differs if the unit has a number.
  const UnitResult nan = compare_bits(
      plus_one([](float x) { return x == 0 ? std::numeric_limits<float>::quiet_NaN() : x + 1; }),
      options);
  CHECK(nan.mismatches == 2);
  CHECK(nan.first_mismatch == "x=0x00000000: unit 0x3f800000, model 0x7fc00000");
}

TEST_CASE("verify: cases and the first mismatch do not depend on threads") {
  VerifyOptions options;
  options.cases = 100'000;
  options.seed = 7;
  const auto wrong = plus_one([](float x) { return x > 2 && x < 4 ? 0 : x + 1; });
  std::string first;
  uint64_t mismatches = 0;
  for (const int threads : {1, 2, 3}) {
    const ThreadCountGuard guard(threads);
    uint64_t done = 0;
    options.progress = [&](uint64_t now, uint64_t total) {
      CHECK(now > done);
      CHECK(now <= total);
      done = now;
    };
    const UnitResult result = compare_bits(wrong, options);
    CHECK(done == result.cases());
    if (threads == 1) {
      first = result.first_mismatch;
      mismatches = result.mismatches;
      CHECK(mismatches > 100);  // 2^23 of 2^32 patterns: 195 expected, 5 sigma are 70
    }
    CHECK(result.first_mismatch == first);
    CHECK(result.mismatches == mismatches);
  }
  options.progress = {};
  VerifyOptions few = options;
  few.cases = 8'000;  // 16 mismatches expected
  CHECK(compare_bits(wrong, few).first_mismatch == first);
  options.seed = 8;
  CHECK(compare_bits(wrong, options).mismatches != mismatches);
}

TEST_CASE("verify: models similar to VDPBF16PS's are distinguished from it") {
  if (!cpu_has(CpuUnit::kAvx512Bf16)) {
    MESSAGE("SKIPPED: 1 unit: this CPU has no AVX512-BF16");
    return;
  }
  constexpr uint64_t kCases = 20'000;
  CHECK(compare_pair_dot("avx512_bf16", kCases).mismatches == 0);
  CHECK(compare_pair_dot("fp32_fused", kCases).mismatches > 0);  // keeps subnormals, even k first
  CHECK(compare_pair_dot("amx_bf16", kCases).mismatches > 0);    // another order
  CHECK(compare_pair_dot("arm_bfdot", kCases).mismatches > 0);   // rounds to odd
}

TEST_CASE("verify: edge values include the borders, in both signs") {
  const std::vector<uint32_t> words = edge_values(find_format("fp16"));
  const auto holds = [&](uint32_t word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  // 0, -0, least and largest subnormal, least normal, 1, largest, infinities, NaNs.
  for (const uint32_t word : {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x8400, 0x3c00,
                              0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0x7e00, 0xfe00}) {
    CAPTURE(word);
    CHECK(holds(word));
  }
  for (const uint32_t word : words) CHECK(word <= 0xffff);
}

namespace {

void verify_every_unit(uint64_t cases) {
  VerifyOptions options;
  options.cases = cases;
  int64_t ran = 0;
  std::string absent;
  for (const HardwareUnit& unit : cpu_hardware_units()) {
    CAPTURE(std::string(unit.unit));
    CAPTURE(std::string(unit.instruction));
    CHECK(unit.group == kCpuGroup);
    std::string why_not;
    if (!unit.available(&why_not)) {
      CHECK(!why_not.empty());
      absent += " " + std::string(unit.instruction);
      continue;
    }
    const UnitResult result = unit.run(options);
    CAPTURE(result.first_mismatch);
    CHECK(result.mismatches == 0);
    CHECK(result.edge_cases > 1000);
    // All operands of VCVTPH2PS are edge cases.
    CHECK(result.random_cases == (unit.instruction == "VCVTPH2PS" ? 0 : cases));
    ++ran;
  }
  if (!absent.empty()) MESSAGE("SKIPPED: instructions that this CPU lacks:" << absent);
  CHECK(ran >= 1);
}

}  // namespace

TEST_CASE("verify: every unit of this CPU equals its model") {
  verify_every_unit(100'000);
}

TEST_SUITE("slow") {
  TEST_CASE("verify: every unit of this CPU equals its model, 10^7 cases each") {
    verify_every_unit(10'000'000);
  }
}

}  // namespace lockstep
