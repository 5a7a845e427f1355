// Do the steps that are shown belong to the sum that is computed? Every row's last step gives the
// definition's result, every step is one rounding of its formula, and three units are done by hand.
#include "emulation/accumulator/dot.h"

#include <doctest/doctest.h>

#include <bit>
#include <string>
#include <vector>

#include "emulation/accumulator/aligned_block.h"
#include "emulation/accumulator/dot_vectors.h"
#include "tests/emulation/accumulator/dot_cases.h"

namespace lockstep {
namespace {

std::string text_of(const DotSteps& steps) {
  std::string text;
  for (const DotStep& s : steps) {
    std::string value = std::to_string(s.rounded);
    value.erase(value.find_last_not_of('0') + 1);
    text += s.target + " = " + s.formula + " = " + value + "\n";
  }
  return text;
}

DotSteps steps_of(const char* accumulator, std::vector<float> a, std::vector<float> b, double c) {
  return trace_dot(find_accumulator(accumulator),
                   {a.data(), b.data(), static_cast<int64_t>(a.size())}, c);
}

}  // namespace

TEST_CASE("dot steps: the last one gives the definition's result, on every row") {
  uint32_t stream = 900;
  int rows = 0;
  for (const Accumulator& row : accumulators()) {
    if (row.kind == AccumulatorKind::kAlignedBlocks) continue;
    ++rows;
    CAPTURE(row.name);
    const Format& factor = row.operands.empty() ? find_format("fp16") : *row.operands[0];
    Words words(++stream);
    for (int trial = 0; trial < 300; ++trial) {
      const int count = 1 + words.below(70);
      const Case x = random_case(factor, factor, *row.register_format, count, words);
      const DotOperands<float> o{x.a.data(), x.b.data(), count, &factor, &factor};
      const DotSteps steps = trace_dot(row, o, x.c);
      REQUIRE(!steps.empty());
      CHECK(same_result(steps.back().rounded, accumulate_dot(row, o, x.c)));
    }
  }
  CHECK(rows >= 13);
}

TEST_CASE("dot steps: registers and order of three units") {
  const std::vector<float> ones = {1, 1, 1, 1};
  // AMX: two chains from zero, joined, then added to c.
  CHECK(text_of(steps_of("amx_bf16", {1, 2, 3, 4}, ones, 0.5)) ==
        "even = even + a[0] * b[0] = 1.\nodd = odd + a[1] * b[1] = 2.\n"
        "even = even + a[2] * b[2] = 4.\nodd = odd + a[3] * b[3] = 6.\n"
        "both = even + odd = 10.\nacc = acc + both = 10.5\n");
  // VDPBF16PS: the odd element first.
  CHECK(text_of(steps_of("avx512_bf16", {1, 2}, {1, 1}, 0.5)) ==
        "t = acc + a[1] * b[1] = 2.5\nacc = t + a[0] * b[0] = 3.5\n");
  CHECK(text_of(steps_of("fp32_pairwise", {1, 2, 3, 4, 5}, {1, 1, 1, 1, 1}, 0.5)) ==
        "s = a[0] * b[0] = 1.\ns = a[1] * b[1] = 2.\ns = s[0] + s[1] = 3.\n"
        "s = a[2] * b[2] = 3.\ns = a[3] * b[3] = 4.\ns = s[2] + s[3] = 7.\n"
        "s = s[0..1] + s[2..3] = 10.\ns = a[4] * b[4] = 5.\ns = s[0..3] + s[4] = 15.\n"
        "acc = acc + s = 15.5\n");
}

TEST_CASE("dot steps: they show what a rounding dropped, and Kahan's compensation") {
  const DotSteps steps = steps_of("fp32_kahan", {1, 0x1p-12f}, {1, 0x1p-18f}, 0);
  // 1, then 2^-30: lost in t, kept in lost.
  REQUIRE(steps.size() == 9);
  CHECK(steps[6].target == "t");
  CHECK(steps[6].exact == 1 + 0x1p-30);
  CHECK(steps[6].rounded == 1);
  CHECK(steps[7].target == "lost");
  CHECK(steps[7].rounded == -0x1p-30);
  const DotSteps far = steps_of("fp32_fused", {1, 0x1p-60f}, {1, 0x1p-60f}, 0);
  CHECK(far[1].exact > far[1].rounded);
  CHECK_THROWS_AS(steps_of("hopper_fp16", {1}, {1}, 0), std::logic_error);
}

TEST_CASE("block traces: a promotion shows both registers of its addition") {
  const Accumulator& row = find_accumulator("hopper_fp8_promoted");
  const Format& e4m3 = find_format("fp8_e4m3");
  const std::vector<float> a = {1, 2, 3, 4}, b = {1, 1, 1, 1};
  std::vector<BlockTrace> traces;
  aligned_block_dot(row, a.data(), e4m3, b.data(), e4m3, 4, 0.5, nullptr, &traces);
  REQUIRE(traces.size() == 1);
  REQUIRE(traces[0].addition.has_value());
  CHECK(traces[0].addition->before == 0.5);
  CHECK(traces[0].addition->partial == 10);
  CHECK(traces[0].addition->after == 10.5);
}

}  // namespace lockstep
