// Reads [loss_scale] of a policy file.
#pragma once

#include "src/policy/parse/toml_table.h"
#include "src/policy/policy.h"

namespace lockstep {

// A kind other than that of `spec` starts from its own defaults.
void read_loss_scale(TomlTable& table, LossScaleSpec& spec, LossScaleUse& use);

}  // namespace lockstep
