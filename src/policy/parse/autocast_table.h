// Reads [autocast] of a policy file.
#pragma once

#include "src/policy/parse/toml_table.h"
#include "src/policy/policy.h"

namespace lockstep {

// `is_preset`: the lists may name ops that Lockstep does not have.
void read_autocast(TomlTable& table, Policy& policy, bool is_preset);

}  // namespace lockstep
