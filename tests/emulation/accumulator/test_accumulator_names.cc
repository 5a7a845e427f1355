// Which accumulator does a name mean?
// Switches after a row's name, hardware rows that must agree with each other, and error messages.
// The sums themselves are tested elsewhere.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "emulation/accumulator/accumulator.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

std::string refusal(const std::string& name) {
  try {
    find_accumulator(name);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void check_same_spec(const Accumulator& x, const Accumulator& y) {
  CAPTURE(x.name);
  CHECK(x.block.length == y.block.length);
  CHECK(x.block.fraction_bits == y.block.fraction_bits);
  CHECK(x.block.output == y.block.output);
  CHECK(x.block.exponent_floor == y.block.exponent_floor);
  CHECK(x.block.keeps_negative_zero == y.block.keeps_negative_zero);
  CHECK(x.block.zero_products == y.block.zero_products);
  CHECK(x.block.promotion_interval == y.block.promotion_interval);
  CHECK(x.block.order == y.block.order);
  CHECK(x.block.factors_as_fp16 == y.block.factors_as_fp16);
  CHECK((x.block.tf32_input == y.block.tf32_input));
  CHECK(x.format == y.format);
  CHECK(x.register_format == y.register_format);
  CHECK(x.operands == y.operands);
}

}  // namespace

TEST_CASE("accumulator names: the same switches in any order give one object") {
  const Accumulator& both = find_accumulator("hopper_bf16+negative_zero+no_floor");
  CHECK(both.name == "hopper_bf16+negative_zero+no_floor");
  CHECK(&find_accumulator("hopper_bf16+no_floor+negative_zero") == &both);
  CHECK(&find_accumulator("hopper_bf16+no_floor+negative_zero+no_floor") == &both);
  CHECK(&find_accumulator("hopper_bf16+skip_zero_products+negative_zero+no_floor") == &both);
  CHECK(&find_accumulator(both.name) == &both);
  CHECK(both.block.keeps_negative_zero);
  CHECK((both.block.zero_products == ZeroProducts::kIgnored));
  CHECK(both.block.exponent_floor == BlockSpec::kNoFloor);
  CHECK(both.help.size() > find_accumulator("hopper_bf16").help.size());

  // Defaults are the row itself.
  CHECK(&find_accumulator("hopper_bf16+carry_floor+positive_zero") ==
        &find_accumulator("hopper_bf16"));
  CHECK(&find_accumulator("hopper_fp8_mma+split_blocks") == &find_accumulator("hopper_fp8_mma"));
  // MMA-Sim's floor is FP32's emin for sums in FP16 too.
  CHECK(find_accumulator("hopper_fp16_acc16+mmasim_floor").block.exponent_floor == -126);
  CHECK(find_accumulator("hopper_bf16+mmasim_floor").block.exponent_floor == -126);
  const Accumulator& one_block = find_accumulator("hopper_fp8_mma+one_block");
  CHECK(one_block.block.length == 32);
  CHECK(one_block.block.order == ProductOrder::kAscending);
}

TEST_CASE("accumulator names: every switch that is not a default changes some row") {
  for (const AccumulatorSwitch& s : accumulator_switches()) {
    CAPTURE(s.name);
    int fits = 0;
    for (const Accumulator& row : accumulators()) {
      const std::string name = row.name + "+" + std::string(s.name);
      if (!refusal(name).empty()) continue;
      ++fits;
      const Accumulator& variant = find_accumulator(name);
      CHECK((&variant == &row) == s.is_default);
      CHECK(variant.name == (s.is_default ? row.name : name));
    }
    CHECK(fits > 0);
  }
}

TEST_CASE("accumulator names: hardware by compute capability, chips without a source are unknown") {
  int chips = 0;
  for (const Hardware& row : hardware()) {
    for (const int capability : row.capabilities) {
      if (capability == 0) continue;
      ++chips;
      CHECK(hardware_of_capability(capability) == &row);
      CHECK(holds(std::string(row.help), "sm_" + std::to_string(capability)));
    }
    // Chips whose compilers emulate FP8 mma.sync have rows for it.
    const auto is_compiled = [&](const Accumulator& a) {
      return a.hardware == row.name && a.block.order == ProductOrder::kPairsOfFour;
    };
    const auto rows = accumulators();
    CHECK(std::any_of(rows.begin(), rows.end(), is_compiled) == row.emulates_fp8_mma);
    // Chips whose WMMA has shorter blocks of TF32 have rows for it.
    const auto is_split = [&](const Accumulator& a) {
      return a.hardware == row.name && a.name.ends_with("_tf32_wmma") && a.block.length == 4;
    };
    CHECK(std::any_of(rows.begin(), rows.end(), is_split) == row.splits_tf32_wmma);
  }
  CHECK(chips == 8);
  // Xavier, Orin, B300 and the smaller RTX Blackwell: no source tested them.
  for (const int capability : {0, 72, 87, 103, 121}) {
    CHECK(hardware_of_capability(capability) == nullptr);
  }
}

TEST_CASE("accumulator names: what is refused, and why") {
  CHECK(holds(refusal("hoper_fp16"), "did you mean 'hopper_fp16'?"));
  CHECK(holds(refusal("hoper_fp16+negative_zero"), "did you mean 'hopper_fp16'?"));
  CHECK(holds(refusal("hopper_fp16+negative_zer"), "did you mean 'negative_zero'?"));
  CHECK(holds(refusal("hopper_fp16++negative_zero"), "unknown switch ''"));
  CHECK(holds(refusal("hopper_fp16+"), "unknown switch ''"));
  const std::string two = refusal("hopper_bf16+mmasim_floor+no_floor");
  CHECK(holds(two, "'mmasim_floor' and 'no_floor' answer the same question"));
  CHECK(holds(refusal("hopper_bf16+carry_floor+no_floor"), "answer the same question"));
  // Rows without the question: no blocks, no floor, a settled order.
  for (const char* name :
       {"fp32_fused+negative_zero", "avx512_bf16+no_floor", "hopper_fp8+mmasim_floor",
        "hopper_fp8+carry_floor", "hopper_fp16+one_block", "hopper_fp8_mma_acc16+one_block",
        "hopper_fp8_mma_acc16+split_blocks", "hopper_fp16+nearest_away", "fp32_fused+truncate"}) {
    CAPTURE(name);
    CHECK(holds(refusal(name), "has no switch"));
  }
}

TEST_CASE("accumulator names: RTX Blackwell's blocks are Blackwell's, and their FP16 Hopper's") {
  int compared = 0;
  const std::string rtx = "rtx_blackwell_";
  for (const Accumulator& row : accumulators()) {
    if (!row.name.starts_with(rtx)) continue;
    check_same_spec(row, find_accumulator("blackwell_" + row.name.substr(rtx.size())));
    ++compared;
  }
  CHECK(compared == 7);
  for (const char* unit :
       {"fp16", "fp16_acc16", "bf16", "tf32", "tf32_wmma", "fp8_mma", "fp8_mma_acc16"}) {
    check_same_spec(find_accumulator(std::string("blackwell_") + unit),
                    find_accumulator(std::string("hopper_") + unit));
  }
}

}  // namespace lockstep
