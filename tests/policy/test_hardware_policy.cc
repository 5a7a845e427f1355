// Lowering on named hardware: the unit of each sum, its conversions, and the policies it rejects.
#include <doctest/doctest.h>

#include "src/policy/find_policy.h"
#include "src/policy/hardware_policy.h"
#include "tests/lower/lowered.h"
#include "tests/support/refusal.h"

namespace lockstep {
namespace {

Policy policy_on(const std::string& toml, const char* hardware) {
  Policy policy = parse_policy(toml, "test.toml");
  apply_hardware(policy, *find_hardware(hardware));
  return policy;
}
Lowered lower_on(const std::string& toml, const char* hardware) {
  return lower_net(small_net(), policy_on(toml, hardware));
}
std::string problems_on(const std::string& toml, const char* hardware) {
  return testing::problems_in([&] { lower_on(toml, hardware); });
}
const std::string& unit(const Lowered& net, const char* layer, const char* op) {
  return net.op(layer, op).gemm_accumulator->name;
}

}  // namespace

TEST_CASE("hardware: every low-precision sum goes through the unit for its factors") {
  const Lowered fp16 = lower_on("extends = 'torch-autocast-fp16'", "hopper");
  for (const char* op : {"linear", "linear_backward_input", "linear_backward_weight"}) {
    CHECK(unit(fp16, "fc1", op) == "hopper_fp16");
  }
  CHECK(unit(fp16, "conv1", "conv2d") == "hopper_fp16");
  CHECK(unit(lower_on("extends = 'torch-autocast-bf16'", "ampere"), "fc1", "linear") ==
        "ampere_bf16");
  CHECK(unit(lower_on("extends = 'pure-fp16'", "volta"), "fc1", "linear") == "volta_fp16_acc16");
  CHECK(lower_on("extends = 'pure-fp16'", "volta").op("fc1", "linear").accumulator_site >= 0);
  // Other sums are unchanged.
  CHECK(fp16.op("fc1", "linear_backward_bias").reduce_accumulator->name == "fp32_fused");
}

TEST_CASE("hardware: a layer computed in FP32 does not use the low-precision unit") {
  const Lowered net =
      lower_on("extends = 'pure-fp16'\n[[rule]]\nlayer = 'fc1'\ncompute = 'fp32'", "hopper");
  CHECK(unit(net, "fc1", "linear") == "fp32_fused");
  CHECK(unit(net, "fc1", "linear_backward_input") == "fp32_fused");
  CHECK(unit(net, "conv1", "conv2d") == "hopper_fp16_acc16");
  const Lowered autocast =
      lower_on("extends = 'torch-autocast-fp16'\n[autocast]\nfp32 = ['linear']", "hopper");
  CHECK(unit(autocast, "fc1", "linear") == "fp32_fused");
  CHECK(unit(autocast, "fc1", "linear_backward_weight") == "fp32_fused");
}

TEST_CASE("hardware: TF32 factors are truncated unless the policy says how they are formed") {
  const auto rounding = [](const Lowered& net) {
    for (const Instruction& i : net.program.instructions) {
      if (i.kind == InstructionKind::kCast) return i.roundings.at(0).rounding;
    }
    throw std::logic_error("no cast");
  };
  const Lowered plain = lower_net(small_net(), parse_policy("extends = 'tf32'", "test.toml"));
  CHECK(rounding(plain) == Rounding::kNearestAway);
  const Lowered truncated = lower_on("extends = 'tf32'", "hopper");
  CHECK(rounding(truncated) == Rounding::kTowardZero);
  CHECK(unit(truncated, "conv1", "conv2d") == "hopper_tf32");
  CHECK(truncated.op("conv1", "conv2d").factor_formats.at(0)->name == "tf32");
  CHECK(truncated.op("conv1", "conv2d").factor_formats.at(2) == nullptr);  // the bias
  CHECK(rounding(lower_on("extends = 'tf32'\n[gemm]\ntf32_input = 'nearest_away'", "hopper")) ==
        Rounding::kNearestAway);
  CHECK(rounding(
            lower_net(small_net(), parse_policy("extends = 'tf32'\n[gemm]\ntf32_input = 'truncate'",
                                                "test.toml"))) == Rounding::kTowardZero);
  // The unit's switch sets it, too; both must agree.
  const Lowered switched =
      lower_on("extends = 'tf32'\n[gemm]\naccumulator = 'hopper_tf32+nearest_even'", "hopper");
  CHECK(rounding(switched) == Rounding::kNearestEven);
  CHECK(unit(switched, "conv1", "conv2d") == "hopper_tf32+nearest_even");
  CHECK(has(problems_on("extends = 'tf32'\n[gemm]\ntf32_input = 'truncate'\n"
                        "accumulator = 'hopper_tf32+nearest_away'",
                        "hopper"),
            "tf32_input says toward_zero, must be the same"));
}

TEST_CASE("hardware: a CPU's BF16 conversion flushes") {
  const Lowered net = lower_on("extends = 'torch-autocast-bf16'", "avx512-bf16");
  CHECK(net.reads(net.op("fc1", "linear")) == "bf16+flush_in bf16+flush_in bf16+flush_in");
  CHECK(net.writes(net.op("fc1", "linear")) == "bf16+flush_in");
  CHECK(unit(net, "fc1", "linear") == "avx512_bf16");
  CHECK(net.op("fc1", "linear").factor_formats.at(0)->name == "bf16");
}

TEST_CASE("hardware: sums without a unit are refused, one by one") {
  const std::string volta = problems_on("extends = 'torch-autocast-bf16'", "volta");
  // conv1: forward and weight gradient; fc1: forward and both gradients.
  CHECK(
      has(volta, "conv1 conv2d and 4 more sums: volta has no unit that sums bf16 x bf16 in fp32"));
  CHECK(has(problems_on("extends = 'pure-fp16'", "amx"), "in fp16"));
  CHECK(has(problems_on("[gemm]\naccumulator = 'bf16'", "hopper"), "no unit that sums by bf16"));
}

TEST_CASE("hardware: a named unit must be the lane's own, a named chain is kept") {
  CHECK(has(
      problems_on("extends = 'torch-autocast-fp16'\n[gemm]\naccumulator = 'hopper_fp16'", "ampere"),
      "hopper_fp16 is a unit of hopper, not of ampere"));
  const Lowered net = lower_on(
      "extends = 'torch-autocast-bf16'\n[gemm]\naccumulator = 'hopper_bf16+negative_zero'\n"
      "[[rule]]\nlayer = 'fc1'\naccumulator = 'fp32_fused'",
      "hopper");
  CHECK(unit(net, "conv1", "conv2d") == "hopper_bf16+negative_zero");
  CHECK(unit(net, "fc1", "linear") == "fp32_fused");
  // Where the named unit does not fit, the hardware's own does.
  const Lowered mixed = lower_on(
      "extends = 'torch-autocast-bf16'\n[gemm]\naccumulator = 'hopper_fp16'\n"
      "[[rule]]\nlayer = 'conv1'\ncompute = 'fp16'",
      "hopper");
  CHECK(unit(mixed, "conv1", "conv2d") == "hopper_fp16");
  CHECK(unit(mixed, "fc1", "linear") == "hopper_bf16");
  CHECK(has(problems_on("extends = 'torch-autocast-fp16'\n[gemm]\naccumulator = 'fp32_unfused'",
                        "hopper"),
            "no unit that sums by fp32_unfused"));
}

TEST_CASE("hardware: a rule on an operand decides the unit, forward and backward") {
  const Lowered net = lower_on(
      "extends = 'torch-autocast-fp16'\n[[rule]]\nlayer = 'fc1'\n"
      "op = 'linear_backward_weight'\nrole = 'activation'\npoint = 'operand'\nformat = 'fp32'",
      "hopper");
  CHECK(unit(net, "fc1", "linear") == "hopper_fp16");
  CHECK(unit(net, "fc1", "linear_backward_weight") == "fp32_fused");
}

TEST_CASE("accumulators with operand formats: by policy where they fit, by rule or not at all") {
  const Lowered net =
      lower_text(small_net(),
                 "extends = 'torch-autocast-fp16'\n[gemm]\naccumulator = 'hopper_fp16'\n"
                 "[[rule]]\nlayer = 'fc1'\ncompute = 'fp32'");
  CHECK(unit(net, "conv1", "conv2d") == "hopper_fp16");
  CHECK(unit(net, "fc1", "linear") == "fp32_fused");
  CHECK(has(problems_of(small_net(), "[gemm]\naccumulator = 'hopper_fp16'"),
            "no sum of products has factors that it takes; `lockstep list accumulators` shows "
            "them; without the accumulator `lockstep explain` shows every sum's factors"));
  CHECK(has(problems_of(small_net(),
                        "[[rule]]\nop = 'linear'\naccumulator = 'hopper_bf16+negative_zero'"),
            "hopper_bf16+negative_zero does not take fp32 x fp32"));
  CHECK(has(problems_of(small_net(), "[reduce]\naccumulator = 'hopper_fp16'"),
            "forms sums of products only"));
  CHECK(has(problems_of(small_net(), "[gemm]\ntf32_input = 'truncate'"), "operand = \"tf32\""));
}

}  // namespace lockstep
