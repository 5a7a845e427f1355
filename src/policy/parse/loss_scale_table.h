// How is [loss_scale] of a policy file read?
#pragma once

#include "src/policy/parse/toml_table.h"
#include "src/policy/policy.h"

namespace lockstep {

// A kind that `spec` does not have begins with its own defaults.
void read_loss_scale(TomlTable& table, LossScaleSpec& spec, LossScaleUse& use);

}  // namespace lockstep
