// Reads [gemm], [cuda] and [reduce] of a policy file.
#pragma once

#include "src/policy/parse/toml_table.h"
#include "src/policy/policy.h"

namespace lockstep {

// [gemm]: the operands of sums of products, and how they are summed. `is_preset`: hardware may
// override its rounding of TF32.
void read_gemm(TomlTable& table, Policy& policy, bool is_preset);
// [cuda]: how cuBLAS may form sums of products on lanes @cuda.
void read_cuda(TomlTable& table, Policy& policy);
// [reduce]: how other sums are formed.
void read_reduce(TomlTable& table, Policy& policy);

}  // namespace lockstep
