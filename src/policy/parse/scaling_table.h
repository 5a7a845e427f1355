// How is [scaling] of a policy file read?
#pragma once

#include "src/policy/factor_scaling.h"
#include "src/policy/parse/toml_table.h"

namespace lockstep {

// Sets what the table's keys say and leaves the rest. Adds to the table's problems: unknown kinds,
// formats and ops, formats that are not of the kind, keys without effect.
void read_factor_scaling(TomlTable& table, FactorScaling& scaling);

}  // namespace lockstep
