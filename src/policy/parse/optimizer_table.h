// Reads [optimizer], [accumulate] and [all_reduce] of a policy file.
#pragma once

#include "src/policy/parse/toml_table.h"
#include "src/policy/policy.h"

namespace lockstep {

// Call after [storage]: the weight's format decides whether masters make sense.
void read_optimizer(TomlTable& table, Policy& policy);
void read_accumulate(TomlTable& table, Policy& policy);
void read_all_reduce(TomlTable& table, Policy& policy);

}  // namespace lockstep
