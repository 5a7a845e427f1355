// A policy as flags of Megatron-LM's pretraining scripts.
// Never run by us: written from its source.
// Source: Megatron-LM of August 2026: megatron/core/transformer/transformer_config.py (fp8, fp4,
// first_last_layers_bf16), megatron/core/fp8_utils.py (get_fp8_recipe, is_first_last_bf16_layer),
// megatron/training/arguments.py (_add_mixed_precision_args).
#pragma once

#include <string>
#include <vector>

#include "reports/emit/emit_facts.h"

namespace lockstep {

std::string megatron_flags(const EmitFacts& facts, const std::string& module,
                           std::vector<std::string>& unsaid);

}  // namespace lockstep
