// The part of a policy that PyTorch can express.
// torch has an autocast region per module, one dtype for its op lists, TF32 switches, and
// GradScaler; torchao and Transformer Engine have linear layers with scaled operands. The rest of a
// policy (sums, roundings, storage, optimizer, rules for single values) becomes a list of plain
// sentences. Writes no Python: see pytorch_module.h.
#pragma once

#include <string>
#include <vector>

#include "reports/pytorch/pytorch_words.h"
#include "src/graph/ir.h"
#include "src/policy/policy.h"

namespace lockstep {

// Everything that `target` can say of `policy`; one sentence for everything else goes into
// `unsaid`. `graph`: of the model, with the layers that rules may name. What the policy says about
// ops and layers that the graph lacks is left out. `evidence` is the caller's to fill.
PytorchRecipe pytorch_recipe(const Policy& policy, const Graph& graph, const PythonTarget& target,
                             std::vector<std::string>& unsaid);

}  // namespace lockstep
