// Storage and reduction of a policy in the words of FSDP2: a MixedPrecisionPolicy for each call of
// fully_shard. FSDP2 keeps FP32 parameters, hands the modules copies in another format, and reduces
// gradients in a third. Knows nothing of the choice of blocks, which is the user's.
// Source: torch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_api.py. reduce_dtype is always
// written: None means param_dtype up to torch 2.14 and the parameter's grad_dtype from 2.15 on.
#pragma once

#include <string>
#include <vector>

#include "reports/pytorch/pytorch_words.h"
#include "src/graph/ir.h"
#include "src/policy/policy.h"

namespace lockstep {

// Under autocast, parameters that every op reads in its format are handed out in it; those that
// some op reads in FP32 stay so. Without autocast, FSDP2's copies are the policy's 16-bit weights,
// if it has FP32 masters of them.
ShardedPrecision sharded_precision(const Policy& policy, const Graph& graph,
                                   std::vector<std::string>& unsaid);
// The policy without what FSDP2 can say, for pytorch_unsaid.h. `torch`: the preset of torch's own
// behaviour.
Policy without_sharded_words(const Policy& policy, const Policy& torch);

}  // namespace lockstep
