// Three keys say how TF32 factors are formed: operand_rounding, tf32_input, and an accumulator that
// rounds its inputs. No two of them may contradict each other.
#include "src/policy/parse/sums_table.h"

#include <fmt/format.h>

#include "src/policy/parse/keys.h"

namespace lockstep {
namespace {

bool reads_tf32(const Policy& policy) {
  return policy.gemm_operand != nullptr && policy.gemm_operand->is_tf32();
}

// The rounding of TF32 factors in one word. A hardware target does not override it.
Rounding find_tf32_input(const std::string& name) {
  if (name == "nearest_away") return Rounding::kNearestAway;
  if (name == "nearest_even") return Rounding::kNearestEven;
  if (name == "truncate") return Rounding::kTowardZero;
  throw InputError("unknown rounding of TF32 inputs",
                   "nearest_away (cvt.rna), nearest_even, or truncate (raw FP32 registers)");
}

void read_tf32_input(TomlTable& table, Policy& policy) {
  std::optional<Rounding> found;
  read_name(table, "tf32_input", find_tf32_input, found);
  if (!found) return;
  policy.tf32_input = policy.gemm_operand_rounding = *found;
  if (!reads_tf32(policy)) {
    table.problem("tf32_input", "needs operand = \"tf32\"");
  }
  if (table.has("operand_rounding")) {
    table.problem("tf32_input", "and operand_rounding have the same meaning, must be one of them");
  }
}

// If the accumulator is one that rounds its TF32 inputs, the policy's cast does that rounding.
void read_tf32_switch(TomlTable& table, Policy& policy) {
  const Tf32Input input = policy.gemm_accumulator->block.tf32_input;
  if (!table.has("accumulator") || input == Tf32Input::kTruncate || !reads_tf32(policy)) {
    return;
  }
  const Rounding rounding =
      input == Tf32Input::kNearestAway ? Rounding::kNearestAway : Rounding::kNearestEven;
  const bool is_told = table.has("tf32_input") || table.has("operand_rounding");
  if (is_told && policy.gemm_operand_rounding != rounding) {
    table.problem("accumulator", "= '" + policy.gemm_accumulator->name +
                                     "': operand_rounding or tf32_input says " +
                                     std::string(to_string(policy.gemm_operand_rounding)) +
                                     ", must be the same");
  }
  policy.tf32_input = policy.gemm_operand_rounding = rounding;
}

// Sums without products are chains only.
const Accumulator* find_sum(const std::string& name) {
  const Accumulator& found = find_accumulator(name);
  if (found.adds()) return &found;
  throw InputError("accumulator '" + found.name + "': forms sums of products only",
                   "[reduce] takes fp32_fused, fp16, bf16 and the other chains");
}

IndexedSums find_indexed_sums(const std::string& name) {
  if (name == "declared") return IndexedSums::kDeclared;
  if (name == "torch_cuda") return IndexedSums::kTorchCuda;
  if (name == "torch_cpu") return IndexedSums::kTorchCpu;
  throw InputError("'" + name + "': must be declared, torch_cuda or torch_cpu");
}

}  // namespace

void read_gemm(TomlTable& table, Policy& policy, bool is_preset) {
  read_format_or_none(table, "operand", policy.gemm_operand, policy.notes);
  read_name(table, "operand_rounding", find_rounding, policy.gemm_operand_rounding);
  read_ops(table, "operand_ops", policy.gemm_operand_ops);
  if (table.has("operand_ops") && policy.gemm_operand == nullptr) {
    table.problem("operand_ops", "has no effect: operand is none", "set operand = \"tf32\"");
  }
  // In a user's own file it also applies on hardware that would truncate.
  if (!is_preset && table.has("operand_rounding")) {
    policy.tf32_input = policy.gemm_operand_rounding;
  }
  read_tf32_input(table, policy);
  read_accumulator(table, policy.gemm_accumulator);
  read_tf32_switch(table, policy);
  read_name(table, "conv_bias", second_of("fused", "rounded"), policy.rounds_before_conv_bias);
  table.finish();
}

void read_cuda(TomlTable& table, Policy& policy) {
  constexpr int64_t kMostMebibytes = 4096;
  LibraryRules& rules = policy.cuda;
  rules.splits_k = table.boolean("split_k").value_or(rules.splits_k);
  read_name(table, "results", second_of("fp32", "factors"), rules.narrow_results);
  rules.adds_parts_narrow =
      table.boolean("reduced_precision_reduction").value_or(rules.adds_parts_narrow);
  if (table.has("reduced_precision_reduction") && !rules.narrow_results) {
    table.problem("reduced_precision_reduction", "has no effect: results is fp32",
                  "set results = \"factors\"");
  }
  if (const auto mebibytes = table.integer("workspace_mib")) {
    if (*mebibytes >= 0 && *mebibytes <= kMostMebibytes) {
      rules.workspace_bytes = *mebibytes << 20;
    } else {
      table.problem("workspace_mib",
                    fmt::format("= {}: must be in 0..{}", *mebibytes, kMostMebibytes));
    }
  }
  table.finish();
}

void read_reduce(TomlTable& table, Policy& policy) {
  read_name(table, "accumulator", find_sum, policy.reduce_accumulator);
  read_name(table, "indexed", find_indexed_sums, policy.indexed_sums);
  table.finish();
}

}  // namespace lockstep
