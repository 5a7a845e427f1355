// How is a [[rule]] of a policy file read?
#pragma once

#include "src/policy/parse/toml_table.h"
#include "src/policy/policy.h"

namespace lockstep {

// Adds the rule to policy.rules. Behind [autocast], which a rule may switch off.
void read_rule(TomlTable& table, Policy& policy);

}  // namespace lockstep
