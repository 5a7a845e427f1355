// Formats are replaced in the policy; accumulators are chosen sum by sum.
#include "src/graph/hardware_policy.h"

#include <algorithm>

namespace lockstep {
namespace {

const Format& fp32() {
  static const Format& format = find_format("fp32");
  return format;
}

// One of the accumulator's operand formats that holds x's values in x's own encoding (flushing
// variants included), or, second, any that holds them: a BF16 value is a TF32 value.
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

// How the unit would read these factors; {null, null} when it does not take them. `operand`: the
// policy's [gemm] operand format, which narrower factors were not cast to but are read as.
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

}  // namespace

void apply_hardware(Policy& policy, const Hardware& hardware) {
  policy.hardware = &hardware;
  if (hardware.truncates_tf32 && !policy.tf32_input && policy.gemm_operand != nullptr &&
      policy.gemm_operand == &find_format("tf32")) {
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
  for (PolicyRule& rule : policy.rules) {
    replace(rule.compute);
    replace(rule.format);
  }
}

AccumulatorChoice choose_accumulator(const Policy& policy, const Accumulator& wanted, bool by_rule,
                                     const Format& a, const Format& b) {
  const std::string factors = a.name + " x " + b.name;
  if (!wanted.operands.empty()) {
    const Factors read = read_by(wanted, a, b, policy.gemm_operand);
    if (read.a != nullptr) return {&wanted, read.a, read.b, ""};
    AccumulatorChoice plain = plain_fp32(a, b);
    if (by_rule) plain.problem = "accumulator " + wanted.name + " does not take " + factors;
    return plain;
  }
  if (policy.hardware == nullptr || wanted.format->is_fp64()) return {&wanted, &a, &b, ""};

  const std::string name(policy.hardware->name);
  const bool runs_others = policy.hardware->runs_other_sums;
  AccumulatorChoice none = runs_others ? AccumulatorChoice{&wanted, &a, &b, ""} : plain_fp32(a, b);
  const bool is_chain = wanted.adds();
  const Format& sum = *wanted.register_format;
  if (!is_chain || !(sum.is_fp32() || &sum == &find_format("fp16"))) {
    if (!runs_others) none.problem = name + " has no unit that sums by " + wanted.name;
    return none;
  }
  for (const Accumulator& unit : accumulators()) {
    if (unit.hardware != name || unit.register_format != &sum) continue;
    const Factors read = read_by(unit, a, b, policy.gemm_operand);
    if (read.a != nullptr) return {&unit, read.a, read.b, ""};
  }
  const bool low_factors = !contains(a, fp32()) && !contains(b, fp32());
  if (!runs_others && (low_factors || !sum.is_fp32())) {
    none.problem = name + " has no unit that sums " + factors + " in " + sum.name;
  }
  return none;
}

}  // namespace lockstep
