// [scaling] of a policy in the words of torchao and Transformer Engine.
// Both have linear layers that scale and round the factors of their products; a policy can be said
// where one of them rounds as it asks. Nothing here was run on a GPU.
// Source: torchao 0.18.0, torchao/float8/config.py and torchao/prototype/moe_training/config.py;
// Transformer Engine 2.20, transformer_engine/common/recipe/__init__.py.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/pytorch/pytorch_words.h"
#include "src/graph/ir.h"
#include "src/policy/policy.h"

namespace lockstep {

// Absent: nothing is scaled, or neither library rounds so, which becomes a sentence. Layers that no
// library can replace, since their product is not that of an nn.Linear, become sentences, too.
std::optional<ScaledLinears> scaled_linears(const Policy& policy, const Graph& graph,
                                            std::vector<std::string>& unsaid);

}  // namespace lockstep
