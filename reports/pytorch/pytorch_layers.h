// The rules of a policy as regions by module: FP32, another 16-bit format, TF32 or none.
// An autocast region has torch's lists, so a rule can be expressed if it gives every op of a module
// the format that those lists give it in such a region. Everything else becomes a sentence.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reports/pytorch/pytorch_words.h"
#include "src/graph/ir.h"
#include "src/policy/policy.h"

namespace lockstep {

// The preset of torch.autocast to `low` whose lists treat most of `ops` as the policy does; the one
// that the policy extends, or one of the policy's device, or else the first, where several do. Of
// several versions the newest comes first. FP32, where torch has no autocast to `low`.
Policy nearest_torch_preset(const Policy& policy, const Format& low,
                            const std::set<std::string>& ops);
// Whether torch has an autocast to it.
bool has_torch_autocast(const Format& format);
// Fills fp32_layers and low_layers. Requires: recipe.format and recipe.tf32.
void add_layers(const Policy& policy, const Graph& graph, PytorchRecipe& recipe,
                std::vector<std::string>& unsaid);
// The switches for [gemm] operand = "tf32".
std::optional<Tf32Switches> tf32_switches(const Policy& policy, const Graph& graph,
                                          std::vector<std::string>& unsaid);
// The format that the last matching `compute` rule gives an op, or null.
const Format* compute_format(const Policy& policy, const std::string& layer, const std::string& op);

}  // namespace lockstep
