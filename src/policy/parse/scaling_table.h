// Reads [scaling] of a policy file.
#pragma once

#include "src/policy/factor_scaling.h"
#include "src/policy/parse/toml_table.h"

namespace lockstep {

// Sets the table's keys and changes nothing else. Adds to the table's problems: unknown kinds,
// formats and ops, formats that do not fit the kind, keys without effect.
void read_factor_scaling(TomlTable& table, FactorScaling& scaling);

}  // namespace lockstep
