// How is [autocast] of a policy file read?
#pragma once

#include "src/graph/policy.h"
#include "src/graph/toml_table.h"

namespace lockstep {

// `is_preset`: the lists may name ops that Lockstep does not have.
void read_autocast(TomlTable& table, Policy& policy, bool is_preset);

}  // namespace lockstep
