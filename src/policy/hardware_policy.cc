// Formats are replaced in the policy; accumulators are chosen sum by sum.
#include "src/policy/hardware_policy.h"

#include <algorithm>

namespace lockstep {
namespace {

const Format& fp32_format() {
  static const Format& format = find_format("fp32");
  return format;
}

// The accumulator's operand format that holds x's values in x's own encoding (flushing variants
// included); failing that, any that holds them: a BF16 value is a TF32 value.
const Format* decoded_in(const Accumulator& accumulator, const Format& x) {
  if (accumulator.operands.empty()) return &x;
  for (const Format* f : accumulator.operands) {
    if (f->precision == x.precision && f->emin == x.emin && contains(*f, x)) return f;
  }
  return nullptr;
}

struct Factors {
  const Format *a, *b;
};

// The formats in which the unit reads these factors; {null, null} if it does not take them.
// `operand`: the policy's [gemm] operand format. Narrower factors are read in it without a cast.
Factors read_by(const Accumulator& unit, const Format& a, const Format& b, const Format* operand) {
  const Factors own = {decoded_in(unit, a), decoded_in(unit, b)};
  if (own.a != nullptr && own.b != nullptr) return own;
  if (operand != nullptr && unit.takes(*operand) && contains(*operand, a) &&
      contains(*operand, b)) {
    return {operand, operand};
  }
  return {nullptr, nullptr};
}

AccumulatorChoice plain_fp32(const Format& a, const Format& b) {
  return {&find_accumulator("fp32_fused"), &a, &b, ""};
}

// Whether some hardware sums in registers of this format.
bool is_register_of_units(const Format& sum) {
  return std::ranges::any_of(accumulators(), [&](const Accumulator& unit) {
    return !unit.hardware.empty() && unit.register_format == &sum;
  });
}

}  // namespace

void apply_hardware(Policy& policy, const Hardware& hardware) {
  policy.hardware = &hardware;
  if (hardware.truncates_tf32 && !policy.tf32_input && policy.gemm_operand != nullptr &&
      policy.gemm_operand->is_tf32()) {
    policy.gemm_operand_rounding = Rounding::kTowardZero;
  }
  if (!hardware.flushes_bf16) return;
  const Format &bf16 = find_format("bf16"), &flushing = find_format("bf16+flush_in");
  const auto replace = [&](const Format*& format) {
    if (format == &bf16) format = &flushing;
  };
  replace(policy.weight);
  replace(policy.buffer);
  replace(policy.input);
  replace(policy.low);
  replace(policy.gemm_operand);
  replace(policy.optimizer_arithmetic);
  replace(policy.optimizer_state);
  for (PolicyRule& rule : policy.rules) {
    replace(rule.compute);
    replace(rule.format);
  }
}

AccumulatorChoice choose_accumulator(const Policy& policy, const Accumulator& wanted, bool by_rule,
                                     const Format& a, const Format& b) {
  const std::string factors = a.name + " x " + b.name;
  const Hardware* hardware = policy.hardware;
  const bool names_unit = !wanted.operands.empty();
  AccumulatorChoice as_wanted = {&wanted, &a, &b, ""};
  if (names_unit) {
    const Factors read = read_by(wanted, a, b, policy.gemm_operand);
    if (read.a != nullptr) as_wanted = {&wanted, read.a, read.b, ""};
    if (hardware != nullptr && !hardware->runs_other_sums && wanted.hardware != hardware->name) {
      as_wanted.problem = wanted.name + " is a unit of " + wanted.hardware + ", not of " +
                          std::string(hardware->name);
      return as_wanted;
    }
    if (read.a != nullptr) return as_wanted;
    if (by_rule) {
      as_wanted.problem = "accumulator " + wanted.name + " does not take " + factors;
      return as_wanted;
    }
    if (hardware == nullptr) return plain_fp32(a, b);
  }
  // A chain that a rule names is kept.
  if (hardware == nullptr || wanted.format->is_fp64() || (by_rule && !names_unit)) return as_wanted;

  const std::string name(hardware->name);
  const Format& sum = *wanted.register_format;
  const bool is_default = names_unit || wanted.kind == AccumulatorKind::kFusedChain;
  if (!is_default || !is_register_of_units(sum)) {
    if (!hardware->runs_other_sums)
      as_wanted.problem = name + " has no unit that sums by " + wanted.name;
    return as_wanted;
  }
  for (const Accumulator& unit : accumulators()) {
    if (unit.hardware != name || unit.register_format != &sum) continue;
    const Factors read = read_by(unit, a, b, policy.gemm_operand);
    if (read.a != nullptr) return {&unit, read.a, read.b, ""};
  }
  AccumulatorChoice plain = names_unit || !hardware->runs_other_sums ? plain_fp32(a, b) : as_wanted;
  const bool low_factors = !contains(a, fp32_format()) && !contains(b, fp32_format());
  if (!hardware->runs_other_sums && (low_factors || !sum.is_fp32())) {
    plain.problem = name + " has no unit that sums " + factors + " in " + sum.name;
  }
  return plain;
}

}  // namespace lockstep
