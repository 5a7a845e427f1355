// What of a policy can be said in PyTorch's words?
// torch has an autocast region per module, one dtype for its op lists, and GradScaler. The rest of
// a policy (sums, roundings, storage, optimizer, rules for single values) becomes a list of plain
// sentences. Writes no Python: see pytorch_module.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/graph/ir.h"
#include "src/policy/policy.h"

namespace lockstep {

// "torch.float16", "torch.bfloat16". Requires: fp16 or bf16.
std::string torch_dtype(const std::string& format);

// The arguments of torch.amp.GradScaler.
struct GradScalerArguments {
  double init_scale, growth_factor, backoff_factor;
  int64_t growth_interval;
  // The scale never moves: an overflow skips the step and leaves the scale, and no run reaches the
  // growth interval.
  bool is_static;
};

struct PytorchRecipe {
  std::string format;        // autocast's dtype: fp16 or bf16; "": no autocast
  bool weight_cache = true;  // torch.autocast(cache_enabled=...)
  std::string op_lists;      // the preset whose op lists the policy is nearest to, or ""
  std::vector<std::string> fp32_layers;  // module paths that stay in FP32, in the graph's order
  std::optional<GradScalerArguments> scaler;  // absent: none needed
  // A call of Transformer Engine's module `recipe`, for policies with FP8 factors; else "".
  std::string transformer_engine;
  std::string model, evidence;  // for the module's first lines
};

// Everything that torch can say of `policy`; one sentence for everything else goes into `unsaid`.
// `graph`: of the model, with the layers that rules may name. What the policy says about ops and
// layers that the graph lacks is left out. `evidence` is the caller's to fill.
PytorchRecipe pytorch_recipe(const Policy& policy, const Graph& graph,
                             std::vector<std::string>& unsaid);

}  // namespace lockstep
