// How are [optimizer] and [all_reduce] of a policy file read?
#pragma once

#include "src/policy/parse/toml_table.h"
#include "src/policy/policy.h"

namespace lockstep {

// Behind [storage], whose weight decides what masters are for.
void read_optimizer(TomlTable& table, Policy& policy);
void read_all_reduce(TomlTable& table, Policy& policy);

}  // namespace lockstep
