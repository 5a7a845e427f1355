// Reads a [[rule]] of a policy file.
#pragma once

#include "src/policy/parse/toml_table.h"
#include "src/policy/policy.h"

namespace lockstep {

// Adds the rule to policy.rules. Call after [autocast], which a rule may switch off.
void read_rule(TomlTable& table, Policy& policy);

}  // namespace lockstep
