// How are [gemm] and [reduce] of a policy file read?
#pragma once

#include "src/policy/parse/toml_table.h"
#include "src/policy/policy.h"

namespace lockstep {

// [gemm]: what sums of products take, and how they sum. `is_preset`: what it says of rounding TF32
// gives way to hardware.
void read_gemm(TomlTable& table, Policy& policy, bool is_preset);
// [reduce]: how other sums are formed.
void read_reduce(TomlTable& table, Policy& policy);

}  // namespace lockstep
